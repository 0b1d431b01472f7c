"""How the ranks of a run come to the same engine and notes, with stand-ins for all else."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest

import fedblocks as fb
from fedblocks.runs.ranks import build
from fedblocks.runs.ranks.ranks import Ranks
from fedblocks.runs.storage.record import Note

from .in_threads import play_in_threads


@dataclass(frozen=True)
class Made:
    """What `prepare_part` replaces parts of."""

    engine: Any = "none yet"
    notes: tuple[Any, ...] = (Note("device"), Note("other"))
    hash: str = "same"


@dataclass(frozen=True)
class Part:
    prepared: Made


def test_a_part_has_the_engine_that_was_chosen_and_says_so_after_the_device(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    hashes = ["same", "same"]
    monkeypatch.setattr(build, "check_alike", lambda ranks, config: None)
    monkeypatch.setattr(build, "_read_part", lambda ranks, config: Part(Made()))
    monkeypatch.setattr(build, "_choose_engine", lambda *given: (fb.Sequential(), "it is small"))
    ranks: Any = SimpleNamespace(together=lambda work: work(), share=lambda own: hashes)
    config: Any = None
    run: Any = build.prepare_part(ranks, config)
    assert isinstance(run.prepared.engine, fb.Sequential)
    assert [note.text for note in run.prepared.notes] == [
        "device", "engine sequential: it is small", "other",
    ]  # fmt: skip
    hashes[1] = "other"
    with pytest.raises(fb.UserError, match="rank 1 has other data than rank 0"):
        build.prepare_part(ranks, config)


@pytest.mark.parametrize("engine", [fb.Sequential(), fb.Vectorised(chunk=9)])
def test_all_ranks_have_the_engine_of_the_first(
    engine: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seven clients a round on three ranks are three at most on each."""
    asked: list[Any] = []

    def choose(config: Any, experiment: Any, cohort: int, device: Any, clients: Any) -> Any:
        asked.append((config.processes, cohort, device, clients))
        return engine, "so"

    monkeypatch.setattr(build, "engine_of", choose)
    data = SimpleNamespace(device="cpu")
    prepared: Any = SimpleNamespace(
        config=fb.read_config("digits-fedavg"), experiment=SimpleNamespace(data=data), cohort=7,
        clients=[1, 2],
    )  # fmt: skip
    ends = play_in_threads(3, lambda ranks: build._choose_engine(ranks, prepared), monkeypatch)
    assert [reason for _, reason in ends] == ["so"] * 3 and asked == [(1, 3, "cpu", [1, 2])]
    assert [type(own) for own, _ in ends] == [type(engine)] * 3
    assert all(getattr(own, "chunk", 9) == 9 for own, _ in ends)


def test_ranks_are_no_engine_of_processes() -> None:
    config = fb.read_config("digits-fedavg", ['engine="processes"'])
    data = SimpleNamespace(device="cpu")
    prepared: Any = SimpleNamespace(
        config=config, experiment=SimpleNamespace(data=data), cohort=2, clients=[]
    )
    ranks: Any = SimpleNamespace(count=2, lead=lambda work, serve: work())
    with pytest.raises(fb.UserError, match="ranks are processes already"):
        build._choose_engine(ranks, prepared)
    assert Ranks(0, 2, 1.0).first and not Ranks(1, 2, 1.0).first
