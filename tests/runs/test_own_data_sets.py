"""Data sets of the user's own that return a whole federation, by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedblocks as fb
from fedblocks.config.model import Config
from fedblocks.config.sources import Source
from fedblocks.runs.build import prepare
from fedblocks.runs.federations import federation_of

BASE = {"rounds": 1, "net": "mlp", "method": {"name": "fedavg", "batch_size": 8}}


def own() -> fb.Federation:
    """Four clients."""
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(80, 4)).astype("float32"), np.arange(80) % 3
    return fb.Federation.from_users(x, y, np.repeat(np.arange(4), 20))


@pytest.fixture(autouse=True)
def _listed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(fb.DATASETS, "own", own)


def config_with(**data: Any) -> Config:
    return Config.of({**BASE, "data": {"name": "own", **data}}, Source("own.toml"))


def test_a_data_set_that_returns_a_federation_needs_no_other_field(tmp_path: Path) -> None:
    config = config_with()
    assert federation_of(config).hash() == own().hash()
    assert fb.run(config, tmp_path / "run").rounds == 1


@pytest.mark.parametrize(
    ("field", "value"),
    [("clients", 3), ("partition", "iid"), ("split", [0.5, 0.25, 0.25]), ("stratified", True)],
)
def test_what_such_a_data_set_decides_itself_is_refused(field: str, value: Any) -> None:
    more = {"clients": 4} if field == "partition" else {}
    words = 'the data set "own" divides its rows among clients itself'
    with pytest.raises(fb.DataError, match=words) as error:
        federation_of(config_with(**{field: value}, **more))
    assert "leave out data." in error.value.fix


def test_a_seed_that_changes_nothing_is_a_warning() -> None:
    idle = "data.seed = 1 changes nothing"
    texts = [note.text for note in prepare(config_with(seed=1)).notes if note.level == "warning"]
    assert sum(idle in text for text in texts) == 1
    for used in ({"seed": 1, "unseen": 0.25}, {"seed": 0}):
        assert not any(
            "changes nothing" in note.text for note in prepare(config_with(**used)).notes
        )


def test_a_data_set_of_ours_still_asks_for_the_number_of_clients() -> None:
    with pytest.raises(fb.UserError, match="say how many clients there are"):
        Config.of({**BASE, "data": {"name": "digits"}}, Source("own.toml"))
