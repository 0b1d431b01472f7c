"""Trials of a search, asked for by a study that is made up."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fedblocks.core.errors import RunFolderError, UserError
from fedblocks.runs.grids import tune
from fedblocks.runs.storage.main_metric import MainMetric
from fedblocks.runs.storage.record import Note

OPTUNA: Any = SimpleNamespace(
    trial=SimpleNamespace(TrialState=SimpleNamespace(FAIL="fail", PRUNED="pruned"))
)


class Asked:
    """A trial."""

    def __init__(self, number: int) -> None:
        self.number, self.attributes = number, dict[str, Any]()
        self.reported: dict[int, float] = {}
        self.prune = False

    def set_user_attr(self, name: str, value: Any) -> None:
        self.attributes[name] = value

    def report(self, value: float, round: int) -> None:
        self.reported[round] = value

    def should_prune(self) -> bool:
        return self.prune


class Study:
    """Which trials were asked for, and what was told of them."""

    def __init__(self) -> None:
        self.asked: list[Asked] = []
        self.told: list[Any] = []
        self.user_attrs: dict[str, Any] = {}

    def ask(self) -> Asked:
        self.asked.append(Asked(len(self.asked)))
        return self.asked[-1]

    def tell(self, trial: Asked, **how: Any) -> None:
        self.told.append((trial.number, how))

    def set_user_attr(self, name: str, value: Any) -> None:
        self.user_attrs[name] = value

    def get_trials(self, deepcopy: bool) -> list[Any]:
        return []


@pytest.fixture
def ended(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The numbers of trials that somebody was told of."""
    told: list[int] = []
    monkeypatch.setattr(tune, "_tell", lambda study, number, on_trial: told.append(number))
    return told


def test_trials_are_asked_for_one_by_one_and_refused_ones_are_told(
    ended: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[Any] = []

    def prepare(changes: list[str]) -> Any:
        read.append(changes)
        if len(read) == 2:
            raise UserError("too large", "make it smaller")
        return SimpleNamespace(notes=[Note("first"), Note("second")])

    monkeypatch.setattr(tune, "_config", lambda what, changes: [what, *changes])
    monkeypatch.setattr(tune, "prepare", prepare)
    notes: list[str] = []
    values = iter([0.1, 0.2, 0.3])
    space: Any = {"lr": SimpleNamespace(suggest=lambda trial, name: next(values))}
    search = tune.Search(
        "digits", ["rounds=3"], space, Path("out"), None, lambda note: notes.append(note.text)
    )
    study = Study()
    runs = tune._ask(OPTUNA, study, search, 3)
    first = next(runs)
    assert len(study.asked) == 1 and first.folder == Path("out/trial-000")
    assert notes == ["first", "second"]
    (second,) = list(runs)
    assert second.folder == Path("out/trial-002") and len(study.asked) == 3
    assert read == [["digits", "rounds=3", f"lr={value}"] for value in (0.1, 0.2, 0.3)]
    assert [trial.attributes for trial in study.asked] == [{"lr": v} for v in (0.1, 0.2, 0.3)]
    assert study.told == [(1, {"state": "fail"})] and ended == [1]
    assert study.user_attrs == {f"{tune.REFUSED}-1": "too large"}
    assert list(tune._ask(OPTUNA, study, search, 0)) == []


def done(round: int, score: float | None, sign: str = "higher") -> Any:
    metric = MainMetric("accuracy" if sign == "higher" else "mae", sign)  # type: ignore[arg-type]
    scores = {} if score is None else {"validation": score}
    return SimpleNamespace(
        round=round, rounds=3, scores=scores, metric=metric, counted={"validation": 7}
    )


@pytest.mark.parametrize(("sign", "height"), [("higher", 0.5), ("lower", -0.5)])
def test_a_study_hears_of_scores_and_of_the_end(sign: str, height: float, ended: list[int]) -> None:
    study, trial = Study(), Asked(4)
    hear = tune._listener(OPTUNA, study, trial, None)
    hear(done(1, 0.25, sign))
    hear(done(2, None, sign))
    assert trial.reported == {1: height / 2} and study.told == []
    hear(done(3, 0.5, sign))
    assert trial.reported == {1: height / 2, 3: height}
    assert study.told == [(4, {"values": height})] and ended == [4]
    assert study.user_attrs[f"{tune.CLIENTS}-4"] == 7
    assert MainMetric.read(study.user_attrs[tune.KEY]).better == sign


def test_a_trial_that_does_badly_is_left_after_a_round_with_a_score(ended: list[int]) -> None:
    study, trial = Study(), Asked(4)
    trial.prune = True
    hear = tune._listener(OPTUNA, study, trial, None)
    hear(done(1, None))
    assert study.told == []
    with pytest.raises(tune.Left):
        hear(done(2, 0.25))
    assert study.told == [(4, {"state": "pruned"})] and ended == [4]


def trial(number: int, state: str = "complete", score: float | None = 0.5, **more: Any) -> Any:
    known = {"options": {"lr": number}, "metric": MainMetric(), "clients": 5, "reason": ""}
    return tune.Trial(number, state, score, **{**known, **more})


def test_the_best_trial_has_all_clients_then_the_best_score_then_came_first() -> None:
    best = lambda *ended: tune._choose_best("digits", ["rounds=3"], Path("out"), [*ended]).best
    assert best(trial(0), trial(1, score=0.9)).number == 1
    assert best(trial(0), trial(1)).number == 0
    assert best(trial(0), trial(1, score=0.9, clients=4)).number == 0
    assert best(trial(0), trial(1, "pruned", 0.9), trial(2, score=None)).number == 0
    less = MainMetric("mae", "lower")
    assert best(trial(0, metric=less), trial(1, score=0.9, metric=less)).number == 0
    found = tune._choose_best("digits", ["rounds=3"], Path("out"), [trial(7)])
    assert found.command == "fedblocks run digits --set rounds=3 --set lr=7"
    refused = trial(1, "fail", None, reason="too large")
    with pytest.raises(UserError) as told:
        tune._choose_best("digits", [], Path("out"), [trial(0, "pruned"), refused])
    assert told.value.message == "none of 2 trials came to its end; trial 1: too large"


def test_trials_that_count_are_complete_pruned_or_refused() -> None:
    def kept(number: int, state: str, value: float | None, reported: dict[int, float]) -> Any:
        return SimpleNamespace(
            number=number, state=SimpleNamespace(name=state), value=value,
            intermediate_values=reported, user_attrs={"lr": number},
        )  # fmt: skip

    every = [
        kept(0, "COMPLETE", -0.25, {1: -0.5, 2: -0.25}),
        kept(1, "PRUNED", None, {2: -0.5, 1: -0.7}),
        kept(2, "FAIL", None, {}), kept(3, "FAIL", None, {}), kept(4, "RUNNING", None, {1: -0.1}),
    ]  # fmt: skip
    known = {
        tune.KEY: MainMetric("mae", "lower").text(), f"{tune.REFUSED}-3": "too large",
        f"{tune.CLIENTS}-0": 6,
    }  # fmt: skip
    study = SimpleNamespace(user_attrs=known, get_trials=lambda deepcopy: every)
    found = tune._ended_trials(study)
    assert [(own.number, own.state, own.score, own.clients, own.reason) for own in found] == [
        (0, "complete", 0.25, 6, ""), (1, "pruned", 0.5, 0, ""), (3, "fail", None, 0, "too large"),
    ]  # fmt: skip
    assert found[1].options == {"lr": 1} and found[0].metric.name == "mae"
    heard: list[Any] = []
    tune._tell(study, 1, heard.append)
    tune._tell(study, 1, None)
    assert [own.number for own in heard] == [1]


def test_a_search_begins_in_a_folder_that_is_empty_or_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tune, "_plan", lambda base, space: {"rounds": base})
    folder = tmp_path / "below" / "search"
    tune._begin(folder, 3, {})  # type: ignore[arg-type]
    assert (folder / tune.PLAN).read_text() == "rounds = 3\n"
    tune._begin(folder, 3, {})  # type: ignore[arg-type]
    with pytest.raises(RunFolderError, match="holds a search with other settings"):
        tune._begin(folder, 4, {})  # type: ignore[arg-type]
    (folder / "study.db").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(RunFolderError, match="link"):
        tune._begin(folder, 3, {})  # type: ignore[arg-type]
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "diary").touch()
    with pytest.raises(RunFolderError, match="is not empty and not a search"):
        tune._begin(tmp_path / "other", 3, {})  # type: ignore[arg-type]
    with pytest.raises(RunFolderError, match="cannot write"):
        tune._begin(tmp_path / "other" / "diary" / "x", 3, {})  # type: ignore[arg-type]


@pytest.mark.parametrize("there", [True, False])
def test_the_first_complete_trial_says_whether_the_code_is_that_of_before(
    there: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(tune, "check_taken_over", lambda *given: asked.append(given))
    monkeypatch.setattr(tune, "_config", lambda what, changes: [what, *changes])
    search = tune.Search("digits", ["rounds=3"], {}, tmp_path, None, lambda note: None)
    tune._check_taken_over(search, [trial(0, "pruned"), trial(1, "fail")])
    assert asked == []
    if there:
        (tmp_path / "trial-002").mkdir()
        (tmp_path / "trial-002" / tune.CONFIG).touch()
    tune._check_taken_over(search, [trial(0, "pruned"), trial(2), trial(3)])
    expected = (tmp_path / "trial-002", ["digits", "rounds=3", "lr=2"])
    assert asked == ([expected] if there else [])


def test_a_search_goes_on_until_there_are_enough_trials(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    story: list[Any] = []
    base: Any = SimpleNamespace(
        method=SimpleNamespace(name="fedavg"), data=SimpleNamespace(name="digits"), seed=5
    )
    monkeypatch.setattr(tune, "refuse_ranks", story.append)
    monkeypatch.setattr(tune, "_optuna", lambda: OPTUNA)
    monkeypatch.setattr(tune, "parse_space", lambda changes: ({"lr": 1}, ["rounds=3"]))
    monkeypatch.setattr(tune, "_check_examples", lambda *given: base)
    monkeypatch.setattr(tune, "_key", lambda *given: "abc")
    monkeypatch.setattr(tune, "_begin", lambda folder, *_: story.append(("begin", folder)))
    monkeypatch.setattr(tune, "_study", lambda optuna, folder, seed: ("study", seed))
    monkeypatch.setattr(tune, "_ended_trials", lambda study: [trial(0)])
    monkeypatch.setattr(
        tune, "_check_taken_over", lambda search, ended: story.append(("same code", len(ended)))
    )
    monkeypatch.setattr(tune, "_ask", lambda optuna, study, search, left: ("ask", study, left))
    monkeypatch.setattr(tune, "_try_settings", story.append)
    found = tune.tune("digits", ["lr=0.1..1"], 4, tmp_path)
    assert story == ["tune", ("begin", tmp_path), ("same code", 1), ("ask", ("study", 5), 3)]
    assert found.best.number == 0 and found.folder == tmp_path
    tune.tune("digits", ["lr=0.1..1"], 4)
    assert story[5] == ("begin", tune.RUNS / "tune-fedavg-digits-abc")
