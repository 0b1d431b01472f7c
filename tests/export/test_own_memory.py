"""What leaves a run shares no memory with it and needs no gradients; differences count in both
directions.
"""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from fedblocks import export_model, personal
from fedblocks.core.errors import UserError
from fedblocks.export.fold import fold
from fedblocks.export.formats import read
from fedblocks.export.models import TOLERANCE, _difference
from fedblocks.export.personal import personal_of
from fedblocks.export.predict import _probabilities
from fedblocks.testing import EXAMPLES

from .conftest import Start


def places(blocks: Any) -> set[int]:
    return {value.data_ptr() for block in blocks.values() for value in block.values()}


@pytest.mark.parametrize("method", ["fedavg", "fedper", "fedem", "ditto"])
def test_a_personal_model_and_its_smallest_form_are_copies(method: str) -> None:
    example = EXAMPLES[method]()
    experiment = example.experiment()
    state = experiment.start()
    for block in state.server.values():
        for value in block.values():
            value.requires_grad_(value.is_floating_point())
    model = personal_of(experiment, state, 0)
    assert not places(model.blocks) & places(state.server)
    folded = fold(model).tensors()
    assert not places({"all": folded}) & places(model.blocks)
    for value in (*(v for b in model.blocks.values() for v in b.values()), *folded.values()):
        assert not value.requires_grad


def test_the_model_of_a_file_has_logits_without_gradients(start: Start, tmp_path: Path) -> None:
    result = start("fedavg")
    x = personal(result, 0).examples(2).x.requires_grad_()
    for format in ("safetensors", "pt2"):
        path = export_model(result.folder, 0, format, tmp_path / f"m.{format}")  # type: ignore[arg-type]
        assert not read(path, trust=True).logits(x).requires_grad


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("size", [0.5, 100.0])
def test_a_file_may_differ_by_the_tolerance_in_either_direction(sign: int, size: float) -> None:
    wanted = torch.full((2, 2), -size, dtype=torch.double)
    allowed = TOLERANCE * max(1.0, size)
    original: Any = SimpleNamespace(predict=lambda _: wanted, client=0)
    model = lambda by: SimpleNamespace(
        logits=lambda _: wanted + sign * by, card=SimpleNamespace(format="pt2")
    )
    assert _difference(original, model(0.99 * allowed), wanted) == pytest.approx(0.99 * allowed)
    with pytest.raises(UserError, match="differs from the original"):
        _difference(original, model(1.01 * allowed), wanted)


def test_probabilities_are_worked_out_in_double_precision() -> None:
    outputs = torch.tensor([[2.0, 0.3125, -1.125]])  # bfloat16 holds them
    card: Any = SimpleNamespace(task="classification")
    exact = torch.softmax(outputs.double(), -1)
    assert torch.equal(_probabilities(card, outputs), exact.float())
    half = outputs.to(torch.bfloat16)
    assert torch.equal(_probabilities(card, half), exact.float())
    several: Any = SimpleNamespace(task="multi-label")
    assert torch.equal(_probabilities(several, half), torch.sigmoid(outputs.double()).float())
    assert _probabilities(SimpleNamespace(task="regression"), outputs).shape == (1, 0)  # type: ignore[arg-type]
