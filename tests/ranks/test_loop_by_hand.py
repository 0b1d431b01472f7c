"""Rounds of several ranks one after another: who is tried again, what is stored when, and how a run
ends; with stand-ins for what is around.
"""

from __future__ import annotations

import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import fedblocks as fb
from fedblocks.runs.loop import OFTEN
from fedblocks.runs.ranks import loop
from fedblocks.runs.ranks.errors import RankLost
from fedblocks.runs.ranks.loop import ENOUGH, INTERRUPTED, RankLoop, _resumable
from fedblocks.runs.ranks.training import RankRounds
from fedblocks.runs.stopping import StopRun
from fedblocks.runs.storage.record import Note, RoundRecord


def carry_out(attempts: list[Any], heard: list[Any], own: int) -> tuple[Any, Any, list[Any]]:
    """What a rank ends with, given its attempts and what all ranks say after each."""
    said: list[Any] = []

    def agree(error: Exception | None, value: Any = None) -> list[Any]:
        said.append((error, value))
        if error is not None:
            raise error
        return heard[len(said) - 1] if len(said) <= len(heard) else []

    tries: list[list[int]] = []
    rounds = object.__new__(RankRounds)
    fields = {
        "ranks": SimpleNamespace(agree=agree),
        "experiment": SimpleNamespace(own=lambda left: left[:own]),
        "failures": [],
        "_attempt": lambda job_for, left, work: tries.append(list(left)) or attempts.pop(0),
    }
    for name, value in fields.items():
        object.__setattr__(rounds, name, value)
    return rounds._carry_out(None, [4, 6, 8], None), rounds.failures, [tries, said]  # type: ignore[arg-type]


def failure(client: int) -> Any:
    return SimpleNamespace(client=client, detail="odd")


def test_ranks_begin_anew_without_the_clients_whose_work_failed() -> None:
    done, failures, (tries, said) = carry_out(
        [([], [failure(6)], None), (["done"], [], None)], [[[[6, "odd"]], [[4, "x"]]], [[], []]], 2
    )
    assert done == ["done"] and [one.client for one in failures] == [6]
    assert tries == [[4, 6, 8], [8]] and said == [(None, [[6, "odd"]]), (None, [])]


def test_an_error_of_all_clients_of_a_rank_is_told_only_if_nobody_is_left() -> None:
    error = ValueError("odd")
    both = [failure(4), failure(6)]
    done, failures, (tries, said) = carry_out(
        [([], both, error), (["done"], [], None)], [[[[4, "odd"], [6, "odd"]]], [[]]], 2
    )
    assert done == ["done"] and len(failures) == 2 and tries == [[4, 6, 8], [8]]
    assert said[0] == (None, [[4, "odd"], [6, "odd"]])
    everybody = [[[4, "odd"], [6, "odd"]], [[8, "odd"]]]
    with pytest.raises(ValueError, match="odd"):
        carry_out([([], both, error)], [everybody], 2)
    with pytest.raises(ValueError, match="odd"):
        carry_out([([], [failure(4)], error)], [[[[4, "odd"]]]], 2)  # not all of its clients


class Loop(RankLoop):
    """A loop whose rounds are counted, and that notes what is kept."""

    def _keep(self, record: Any, due: bool) -> str:
        self.kept.append((record, due))
        if due:
            self.changed = set()
        return self.answers.get(record, "")


def play(
    monkeypatch: pytest.MonkeyPatch, rounds: int = 4, every: int | None = 2, **how: Any
) -> tuple[Loop, BaseException | None]:
    asked = how.get("asked", {})
    config = SimpleNamespace(rounds=rounds, checkpoint=SimpleNamespace(every=every))
    monkeypatch.setattr(loop, "cohort_of", lambda prepared, round: [round])
    one = object.__new__(Loop)

    def step(state: Any, engine: Any) -> Any:
        now = SimpleNamespace(round=state.round + 1)
        return engine, (now, now.round)

    def share(own: list[Any]) -> list[Any]:
        return [own, [asked.get(one.state.round, False), True]]

    one.run = SimpleNamespace(  # type: ignore[assignment]
        prepared=SimpleNamespace(config=config, engine="e"), play=step,
        ranks=SimpleNamespace(share=share),
    )  # fmt: skip
    one.state = SimpleNamespace(round=0)  # type: ignore[assignment]
    one.changed, one.kept, one.answers = set(), [], how.get("answers", {})  # type: ignore[attr-defined]
    one.stored = how.get("stored", time.monotonic())
    try:
        one._rounds(SimpleNamespace(asked=False))  # type: ignore[arg-type]
    except BaseException as error:
        return one, error
    return one, None


def test_states_are_stored_when_a_checkpoint_is_due_and_after_the_last_round(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for every, due in ((2, [2, 4, 5]), (3, [3, 5]), (0, [1, 2, 3, 4, 5]), (None, [1, 2, 3, 4, 5])):
        one, error = play(monkeypatch, 5, every)
        assert error is None and [record for record, _ in one.kept] == [1, 2, 3, 4, 5]  # type: ignore[attr-defined]
        assert [record for record, is_due in one.kept if is_due] == due  # type: ignore[attr-defined]
    one, _ = play(monkeypatch, 2, 9, stored=time.monotonic() - OFTEN - 1)
    assert one.kept[0] == (1, True)  # type: ignore[attr-defined]


def test_a_stop_at_any_rank_stores_and_ends_the_run_unless_it_was_the_last_round(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    one, error = play(monkeypatch, 5, 9, asked={2: True})
    assert isinstance(error, KeyboardInterrupt) and one.kept == [(1, False), (2, True)]  # type: ignore[attr-defined]
    one, error = play(monkeypatch, 2, 9, asked={2: True})
    assert error is None and len(one.kept) == 2  # type: ignore[attr-defined]


def test_a_listener_may_end_the_run_here_or_for_another_day(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    one, error = play(monkeypatch, 5, 9, answers={2: ENOUGH})
    assert error is None and one.kept == [(1, False), (2, False), (None, True)]  # type: ignore[attr-defined]
    one, error = play(monkeypatch, 5, 2, answers={2: INTERRUPTED})
    assert isinstance(error, KeyboardInterrupt) and one.kept == [(1, False), (2, True)]  # type: ignore[attr-defined]
    one, error = play(monkeypatch, 2, 2, answers={2: INTERRUPTED})
    assert error is None


def heard(error: BaseException | None, monkeypatch: pytest.MonkeyPatch) -> tuple[str, list[str]]:
    notes: list[str] = []
    stopped: list[Any] = []

    def listen(done: Any) -> None:
        assert (done.round, done.rounds, done.population) == (2, 7, 3)
        if error is not None:
            raise error

    one = object.__new__(RankLoop)
    data = SimpleNamespace(task=fb.Task())
    prepared = SimpleNamespace(
        experiment=SimpleNamespace(data=data), clients=[0, 1, 2], config=SimpleNamespace(rounds=7)
    )
    one.run = SimpleNamespace(prepared=prepared, ranks=SimpleNamespace(first=True))  # type: ignore[assignment]
    one.on_note, one.on_round, one.patience = (lambda note: notes.append(note.text)), listen, None
    one.on_evaluation = None
    one.folder = SimpleNamespace(store=SimpleNamespace(note=stopped.append))  # type: ignore[assignment]
    one.state = SimpleNamespace(round=2)  # type: ignore[assignment]
    return one._tell_of(RoundRecord(2, 1.0, 3, notes=[Note("a note")])), [*notes, *stopped]


def test_the_first_rank_tells_of_a_round_and_hears_how_to_go_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert heard(None, monkeypatch) == ("", ["a note"])
    assert heard(KeyboardInterrupt(), monkeypatch) == (INTERRUPTED, ["a note"])
    end, said = heard(StopRun("seen enough"), monkeypatch)
    assert end == ENOUGH and said == ["a note", *["stopped after round 2: seen enough"] * 2]


def test_a_lost_rank_is_told_with_how_to_go_on() -> None:
    with pytest.raises(RankLost) as lost, _resumable(Path("there")):
        raise RankLost("gone", "start all ranks again")
    assert lost.value.fix.endswith("fedblocks resume there")
