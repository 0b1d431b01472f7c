"""When the loop writes records and checkpoints, whom it tells, and how runs end: every step of it,
with rounds that do nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fedblocks.core.errors import Interrupted, UserError
from fedblocks.core.state import State
from fedblocks.core.task import Task
from fedblocks.engines.sequential import Sequential
from fedblocks.runs import loop
from fedblocks.runs.loop import Lane, Left
from fedblocks.runs.stopping import StopRun
from fedblocks.runs.storage.record import Note, RoundRecord

ENGINE = Sequential()


class Story(list[str]):
    """What was done to the folders of all lanes, in order."""

    def tell(self, note: Note) -> None:
        self.append(f"told: {note.text}")


class Folder:
    """A folder that only says what is asked of it."""

    def __init__(self, name: str, story: Story) -> None:
        self.name, self.story, self.status = name, story, "running"
        self.path, self.store = Path("runs") / name, self
        self.rounds: list[int] = []

    def record_round(self, *records: RoundRecord) -> None:
        self.rounds += [record.round for record in records]
        self.story.append(f"{self.name} writes {[record.round for record in records]}")

    def last_round(self) -> int | None:
        return max(self.rounds, default=None)

    def note(self, text: str) -> None:
        self.story.append(f"{self.name} notes: {text}")

    def set_status(self, status: str) -> None:
        self.status = status
        self.story.append(f"{self.name} is {status}")

    def refuse_moved(self) -> None:
        self.story.append(f"{self.name} is there")


def lane_of(name: str, story: Story, rounds: int, every: int = 2, at: int = 0) -> Lane:
    config = SimpleNamespace(
        rounds=rounds, ingredients=None, checkpoint=SimpleNamespace(every=every, keep=1)
    )
    frozen = SimpleNamespace(check=lambda: story.append(f"{name} checks"))
    data = SimpleNamespace(task=Task())
    prepared: Any = SimpleNamespace(
        config=config, clients=[], experiment=SimpleNamespace(frozen=frozen, data=data)
    )
    folder: Any = Folder(name, story)
    return Lane(folder, prepared, State(at, {}, {}, {}), [])


@pytest.fixture
def story(monkeypatch: pytest.MonkeyPatch) -> Iterator[Story]:
    """Rounds of clients 2r and 2r + 1, in no time."""
    story = Story()

    def play(_: Any, prepared: Any, states: Sequence[State], engine: Any) -> Any:
        after = [replace(state, round=state.round + 1) for state in states]
        return engine, [(state, RoundRecord(state.round, 0.0, 2)) for state in after]

    def save(folder: Any, config: Any, state: State, changed: set[int]) -> None:
        story.append(f"{folder.name} saves {state.round} with {sorted(changed)}")

    monkeypatch.setattr(loop, "play", play)
    monkeypatch.setattr(loop, "save", save)
    monkeypatch.setattr(loop, "Lanes", lambda experiments: None)
    monkeypatch.setattr(loop, "cohort_of", lambda _, round: [2 * round, 2 * round + 1])
    monkeypatch.setattr(loop, "tell_of_evaluation", lambda *_: None)
    yield story


def rounds_of(
    lanes: Sequence[Lane], story: Story, asked: bool = False, on_round: Any = None
) -> list[str]:
    stop: Any = SimpleNamespace(asked=asked)
    loop._rounds(lanes, ENGINE, stop, on_round, story.tell)
    return [line for line in story if not line.endswith(("is there", "checks"))]


def test_a_run_alone_is_recorded_every_round_and_stored_when_a_checkpoint_is_due(
    story: Story,
) -> None:
    assert rounds_of([lane_of("a", story, 5)], story) == [
        "a writes [1]",
        "a writes [2]",
        "a saves 2 with [0, 1, 2, 3]",
        "a writes [3]",
        "a writes [4]",
        "a saves 4 with [4, 5, 6, 7]",
        "a writes [5]",
        "a saves 5 with [8, 9]",
        "a is finished",
    ]
    assert story.count("a is there") == 5 and story.count("a checks") == 4


def test_without_an_interval_every_round_is_stored(story: Story) -> None:
    said = rounds_of([lane_of("a", story, 2, every=0)], story)
    assert [line for line in said if "saves" in line] == [
        "a saves 1 with [0, 1]",
        "a saves 2 with [2, 3]",
    ]


def test_several_runs_are_recorded_when_a_checkpoint_is_due_until_one_has_ended(
    story: Story,
) -> None:
    lanes = [lane_of("a", story, 3), lane_of("b", story, 9)]
    assert rounds_of(lanes, story) == [
        "a writes [1, 2]",
        "a saves 2 with [0, 1, 2, 3]",
        "b writes [1, 2]",
        "b saves 2 with [0, 1, 2, 3]",
        "a writes [3]",
        "a saves 3 with [4, 5]",
        "a is finished",
    ]
    assert [lane.has_ended for lane in lanes] == [True, False]
    assert lanes[1].changed == {4, 5} and [own.round for own in lanes[1].records] == [3]


def test_a_run_without_rounds_ends_at_once(story: Story) -> None:
    lanes = [lane_of("a", story, 3, at=3), lane_of("b", story, 9)]
    assert rounds_of(lanes, story) == ["a is finished"]


def test_after_a_minute_a_run_is_stored_whatever_its_interval(
    story: Story, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rounds of 30 seconds: more than 60 have passed after the third, and after the sixth."""
    clock, play = [0.0], loop.play
    monkeypatch.setattr(loop.time, "monotonic", lambda: clock[0])

    def play_slowly(*args: Any) -> Any:
        clock[0] += 30.0
        return play(*args)

    monkeypatch.setattr(loop, "play", play_slowly)
    said = rounds_of([lane_of("a", story, 7, every=100)], story)
    assert [line.partition(" with")[0] for line in said if "saves" in line] == [
        "a saves 3",
        "a saves 6",
        "a saves 7",
    ]


def test_who_asks_to_stop_has_everything_stored_unless_it_was_the_last_round(
    story: Story,
) -> None:
    lanes = [lane_of("a", story, 1), lane_of("b", story, 9)]
    with pytest.raises(KeyboardInterrupt):
        rounds_of(lanes, story, asked=True)
    assert [line for line in story if "saves" in line] == [
        "a saves 1 with [0, 1]",
        "b saves 1 with [0, 1]",
    ]
    story.clear()
    assert rounds_of([lane_of("c", story, 1)], story, asked=True)[-1] == "c is finished"


def raising(error: BaseException, at: int) -> Callable[[Any], None]:
    def hear(done: Any) -> None:
        if done.round == at:
            raise error

    return hear


def test_a_run_that_is_left_is_stored_and_could_go_on(story: Story) -> None:
    lanes = [lane_of("a", story, 9), lane_of("b", story, 9)]
    lanes[1].on_round = raising(Left(), 1)
    assert rounds_of(lanes, story) == [
        "b writes [1]",
        "b saves 1 with [0, 1]",
        "b is interrupted",
    ]
    assert [lane.has_ended for lane in lanes] == [False, True]


class Impatient:
    """Has seen enough in round 3."""

    is_over = False

    def __init__(self, reason: str) -> None:
        self.hear = raising(StopRun(reason), 3)

    def __call__(self, done: Any) -> None:
        self.hear(done)


@pytest.mark.parametrize(("reason", "why"), [("enough", ": enough"), ("", "")])
def test_a_run_that_has_seen_enough_is_finished_and_says_why(
    story: Story, reason: str, why: str
) -> None:
    lane: Any = lane_of("a", story, 9)
    lane.patience = Impatient(reason)
    said = rounds_of([lane], story)
    assert said[-5:] == [
        "a writes [3]",
        f"a notes: stopped after round 3{why}",
        f"told: stopped after round 3{why}",
        "a saves 3 with [4, 5]",
        "a is finished",
    ]


def test_a_listener_of_all_runs_ends_all_that_go_on(story: Story) -> None:
    lanes = [lane_of("a", story, 9), lane_of("b", story, 9)]
    lanes[0].on_round = raising(Left(), 1)
    said = rounds_of(lanes, story, on_round=raising(StopRun("all"), 1))
    assert said[-5:] == [
        "b notes: stopped after round 1: all",
        "told: stopped after round 1: all",
        "b writes [1]",
        "b saves 1 with [0, 1]",
        "b is finished",
    ]
    assert "a is interrupted" in said and "a is finished" not in said


def test_a_listener_that_interrupts_leaves_everything_stored(story: Story) -> None:
    lanes = [lane_of("a", story, 9), lane_of("b", story, 9)]
    with pytest.raises(KeyboardInterrupt):
        rounds_of(lanes, story, on_round=raising(KeyboardInterrupt(), 1))
    assert [line for line in story if "saves" in line] == [
        "a saves 1 with [0, 1]",
        "b saves 1 with [0, 1]",
    ]


def test_notes_of_a_round_are_told_for_the_first_run(
    story: Story, monkeypatch: pytest.MonkeyPatch
) -> None:
    play = loop.play

    def play_with_notes(*args: Any) -> Any:
        engine, ends = play(*args)
        named = [(state, replace(own, notes=[Note("odd")])) for state, own in ends]
        return engine, named

    monkeypatch.setattr(loop, "play", play_with_notes)
    heard: list[int] = []
    lanes = [lane_of("a", story, 2), lane_of("b", story, 2)]
    said = rounds_of(lanes, story, on_round=lambda done: heard.append(done.round))
    assert said.count("told: odd") == 2 and heard == [1, 2]


STORED = "stopped; round 4 is stored\n  fix: go on with: fedblocks resume runs/a"


@pytest.mark.parametrize(
    ("error", "status", "text"),
    [
        (KeyboardInterrupt(), "interrupted", STORED),
        (Interrupted("x", "y"), "interrupted", "x\n  fix: y"),  # of another run beside it
        (ValueError("x"), "failed", "x"),
        (UserError("x", "y"), "failed", "x\n  fix: y"),
    ],
)
def test_how_a_run_ended_early_is_written_to_its_folder(
    story: Story, error: BaseException, status: str, text: str
) -> None:
    lane: Any = lane_of("a", story, 9)
    lane.folder.rounds = [3, 4]
    with pytest.raises(BaseException) as seen, loop.ending(lane):
        raise error
    assert lane.folder.status == status and str(seen.value) == text


def test_a_run_that_has_ended_is_none_of_the_failures_of_others(story: Story) -> None:
    lane = lane_of("a", story, 9)
    lane.end("finished")
    with pytest.raises(ValueError, match="x"), loop.ending(lane):
        raise ValueError("x")
    assert story[-1] == "a is finished"


def test_runs_join_where_others_have_ended_and_each_begins_once(
    story: Story, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        loop, "begin", lambda lane, tell: story.append(f"{lane.folder.name} begins")
    )
    waiting = [lane_of("c", story, 1), lane_of("d", story, 1)]
    asked: list[list[str]] = []

    def more(going: Sequence[Any]) -> Sequence[Lane]:
        asked.append([lane.folder.name for lane in going])
        return [waiting.pop(0)] if waiting else []

    loop.carry_out([lane_of("a", story, 1), lane_of("b", story, 2)], ENGINE, None, None, more)
    assert asked == [["b"], [], []]
    assert [line for line in story if "begins" in line or "finished" in line] == [
        "a begins",
        "b begins",
        "a is finished",
        "c begins",
        "b is finished",
        "c is finished",
        "d begins",
        "d is finished",
    ]
