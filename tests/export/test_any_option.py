"""Whatever the options of a method hold, its models leave and come back."""

from __future__ import annotations

from numbers import Real
from pathlib import Path
from typing import Any

import pytest
import torch

import fedblocks as fb
from fedblocks.core.introspection import members, options_of
from fedblocks.core.method import Method
from fedblocks.core.schedules import Ramp, Schedule
from fedblocks.export.formats import read
from fedblocks.testing import EXAMPLES
from tests.representatives import mark_others

pytestmark = pytest.mark.filterwarnings("ignore::fedblocks.runs.progress.RunWarning")


def with_schedules(method: Method) -> tuple[Method, list[str]]:
    """The method with a schedule over the run in every option that takes one, an optimizer of its
    own, and an augmentation; and the names of the schedules.
    """
    takes = [n for n, one in options_of(type(method)).items() if Schedule in members(one.kind)]
    values = {name: getattr(method, name) for name in takes}
    numbers = {name: v for name, v in values.items() if isinstance(v, Real)}
    schedules = {name: Ramp(float(v), float(v) * 0.5) for name, v in numbers.items()}
    optimizer = fb.SGD() if isinstance(method, fb.Scaffold) else fb.Adam()  # it takes no other
    own: dict[str, Any] = {"augment": [fb.Noise(0.01)], "optimizer": optimizer, **schedules}
    return type(method)(**{**method.options(), "net": method.net, **own}), [*schedules]


@pytest.mark.parametrize("name", mark_others(EXAMPLES))
def test_a_model_leaves_and_comes_back_with_schedules_in_all_options(
    name: str, tmp_path: Path
) -> None:
    """One method of each kind; all of them in `make test-rest`."""
    example = EXAMPLES[name]()
    method, schedules = with_schedules(example.method(**example.options))
    assert "lr" in schedules
    data = example.federation
    run = fb.run(
        method, data, 2, tmp_path / "run", engine="sequential", allow_degenerate=True, evaluation=2
    )
    path = fb.export_model(run.folder, 0, "safetensors", tmp_path / "m.safetensors", method, data)
    x = data.inputs(data.test[0])
    expected = fb.personal(run, 0, method, data).predict(x)
    assert torch.allclose(read(path, method).logits(x), expected, atol=1e-5)
