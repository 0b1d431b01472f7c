"""Runs of a comparison and trials of a search: which they are, in which order they are done, which
of them side by side, and what is told of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fedblocks.config.model import Config
from fedblocks.config.options import Table
from fedblocks.core.errors import Interrupted, UserError
from fedblocks.engines.sequential import Sequential
from fedblocks.engines.vectorised import Vectorised
from fedblocks.runs.grids import cells, lanes, tune
from fedblocks.runs.grids import grid as grids
from fedblocks.runs.grids.grid import Grid, cell_folder, read_cells, read_grid
from fedblocks.runs.grids.lanes import Queue, Waiting
from fedblocks.runs.grids.tune import Trial, _choose_best, _ended_trials, _listener, _rank
from fedblocks.runs.loop import Left
from fedblocks.runs.progress import RoundDone
from fedblocks.runs.storage.main_metric import KEY, MainMetric

ERROR = MainMetric("rmse", "lower")


def grid_of(small: Table, **changes: Any) -> Grid:
    table = {**small, "seed": 4, "data": {**small["data"], "seed": 10}, **changes}
    methods = {"fedavg": {"name": "fedavg", "lr": 0.5}, "ditto": {"name": "ditto", "strength": 2.0}}
    return Grid(Config.of(table), methods, 2)


def test_runs_of_a_comparison_have_seeds_one_after_the_other_and_data_of_their_seed(
    small: Table,
) -> None:
    grid = grid_of(small)
    assert grid.cells == [("fedavg", 4), ("ditto", 4), ("fedavg", 5), ("ditto", 5)]
    for seed, of_data in ((4, 10), (5, 11), (9, 15)):
        config = grid.config("ditto", seed)
        assert (config.seed, config.data.seed) == (seed, of_data)
        assert (config.method.name, config.method.table["strength"]) == ("ditto", 2.0)


def test_groups_of_clients_have_the_method_with_their_own_training(small: Table) -> None:
    group = {"method": {"name": "local", "lr": 0.25, "epochs": 3}, "clients": [0]}
    config = grid_of(small, groups={"a": group}).config("ditto", 4)
    table = config.resolved()["groups"]["a"]["method"]
    assert (table["name"], table["lr"], table["epochs"], table["strength"]) == (
        "ditto",
        0.25,
        3,
        2.0,
    )


def test_the_key_of_a_comparison_is_that_of_its_base_alone(small: Table) -> None:
    grid = grid_of(small)
    assert len(grid.key()) == 8 and grid.key() == Grid(grid.base, {}, 9).key()
    assert grid.key() != grid_of({**small, "rounds": small["rounds"] + 1}).key()


def test_a_plan_says_methods_seeds_and_options_and_is_read_back(
    small: Table, tmp_path: Path
) -> None:
    grid = grid_of(small)
    compare = grid.plan()["compare"]
    assert compare["methods"] == ["fedavg", "ditto"] and compare["seeds"] == 2
    assert compare["ditto"] == {"strength": 2.0} and compare["fedavg"] == {"lr": 0.5}
    grids._begin(tmp_path / "c", grid)
    names = ["fedavg", "ditto"]  # what was compared: baselines, too, where they can be
    assert read_cells(tmp_path / "c") == [(name, seed) for seed in (4, 5) for name in names]
    assert cell_folder(tmp_path, "ditto", 5) == tmp_path / "runs" / "ditto-5"


def written(tmp_path: Path, text: str) -> Path:
    data = '{ name = "digits", clients = 3 }'
    path = tmp_path / "a.toml"
    path.write_text(f'rounds = 1\nnet = "mlp"\ndata = {data}\n{text}\n[method]\nname = "ditto"\n')
    return path


def test_changes_are_for_one_method_or_for_all(tmp_path: Path) -> None:
    path = written(tmp_path, '[compare]\nmethods = ["fedprox"]\nseeds = 3\n')
    changes = ["method.lr=0.375", "fedprox.lr=0.25", "rounds=2"]
    grid = read_grid(path, None, None, changes)
    assert [*grid.methods] == ["local", "fedavg", "fedavg_ft", "fedprox"] and grid.seeds == 3
    rates = {name: table["lr"] for name, table in grid.methods.items()}
    assert rates == {"local": 0.375, "fedavg": 0.375, "fedavg_ft": 0.375, "fedprox": 0.25}
    assert grid.base.rounds == 2
    own = read_grid(path, ["ditto"], 1, ["ditto.strength=0.125"])
    assert own.methods["ditto"]["strength"] == 0.125 and own.seeds == 1


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("compare = 3", "compare is not a table"),
        ('[compare]\nmethods = "ditto"', "compare.methods is not a list of names"),
        ("[compare]\nmethods = [3]", "compare.methods is not a list of names"),
        ('[compare]\nseeds = "many"', "compare.seeds is not a whole number"),
        ("[compare]\nditto = 3", "compare.ditto is not a table"),
        ("[compare.dito]\nlr = 1", "dito"),
        ("[compare]\nseeds = 0", "0 seeds: nothing to run"),
        ('[evaluation]\nparts = ["validation"]', "methods are compared on test data"),
    ],
)
def test_a_wrong_table_of_a_comparison_is_refused(text: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(UserError) as error:
        read_grid(written(tmp_path, text + "\n"))
    assert said in str(error.value)


def test_runs_that_are_finished_stay_and_others_go_on(
    small: Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = Config.of(small)
    done: list[Any] = []
    monkeypatch.setattr(cells, "run", lambda *args: done.append(("run", *args)))
    monkeypatch.setattr(cells, "resume", lambda *args: done.append(("resume", *args)))
    cells.complete(tmp_path, config, None, None)
    (tmp_path / "config.toml").touch()
    for status in ("finished", "interrupted"):
        before = SimpleNamespace(config=config, status=status)
        monkeypatch.setattr(cells, "load_run", lambda path, before=before: before)
        assert (cells.complete(tmp_path, config, None, None) is before) == (status == "finished")
    assert done == [
        ("run", config, tmp_path, None, None),
        ("resume", tmp_path, None, None, config.ingredients),
    ]
    other = SimpleNamespace(config=Config.of({**small, "rounds": 99}), status="finished")
    monkeypatch.setattr(cells, "load_run", lambda path: other)
    with pytest.raises(UserError, match="holds a run with other settings"):
        cells.complete(tmp_path, config, None, None)


def waiting(name: str, cohort: int, kind: str = "a") -> Waiting:
    prepared: Any = SimpleNamespace(cohort=cohort, kind=kind)
    return Waiting(prepared, Path(name))


def names(runs: Sequence[Waiting]) -> list[str]:
    return [str(one.folder) for one in runs]


@pytest.fixture
def by_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs of one kind fit beside each other."""
    monkeypatch.setattr(lanes, "fits", lambda runs: runs[0].kind == runs[1].kind)


@pytest.mark.usefixtures("by_kind")
def test_runs_are_taken_while_there_is_room_for_their_clients_and_for_them() -> None:
    """Ten clients in a stack: 4 + 6 fit, 4 more do not; one alone always does."""
    runs = [waiting("a", 4), waiting("b", 6), waiting("c", 4), waiting("d", 99)]
    queue = Queue(iter(runs), most=10, at_once=9)
    assert names(queue.take([])) == ["a", "b"] and names(queue.waiting) == ["c", "d"]
    assert names(queue.take([runs[0].prepared])) == ["c"] and names(queue.waiting) == ["d"]
    assert names(queue.take([])) == ["d"] and queue.waiting == []
    assert queue.take([]) == []


@pytest.mark.usefixtures("by_kind")
def test_runs_are_asked_for_only_while_few_go_on_and_few_wait() -> None:
    asked: list[str] = []

    def runs() -> Any:
        for number in range(9):
            asked.append(str(number))
            yield waiting(str(number), 1, "ab"[number % 2])

    queue = Queue(runs(), most=100, at_once=3)
    assert names(queue.take([])) == ["0", "2", "4"] and names(queue.waiting) == ["1", "3"]
    assert asked == ["0", "1", "2", "3", "4"]
    first = waiting("0", 1, "a").prepared
    assert names(queue.take([first, first, first])) == [] and len(asked) == 5
    assert names(queue.take([first])) == [] and names(queue.waiting) == ["1", "3", "5"]
    assert len(asked) == 6


def test_lanes_are_worth_it_for_several_runs_of_stacks_that_fit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stacked, single = (SimpleNamespace(engine=engine) for engine in (Vectorised(), Sequential()))
    for fit in (True, False):
        monkeypatch.setattr(lanes, "fits", lambda runs, fit=fit: fit)
        cases: list[Any] = [[stacked, stacked], [stacked], [stacked, single]]
        assert [lanes.worth_it(case) for case in cases] == [fit, False, False]


def test_trials_are_ranked_by_their_score_and_the_earlier_of_equals_is_first() -> None:
    trials = [
        Trial(0, "complete", 0.5, {"a": 1}),
        Trial(1, "complete", 0.75, {"a": 2}),
        Trial(2, "complete", 0.75, {"a": 3}),
        Trial(3, "pruned", 0.9, {"a": 4}),
        Trial(4, "complete", None, {"a": 5}),
    ]
    best = _choose_best("x.toml", ["rounds=2"], Path("f"), trials)
    assert best.best is trials[1] and best.trials == trials and best.folder == Path("f")
    assert best.command == "fedblocks run x.toml --set rounds=2 --set a=2"
    lower = [Trial(n, "complete", score, {}, ERROR) for n, score in enumerate((3.0, 2.0))]
    assert max(lower, key=_rank).score == 2.0
    assert _rank(trials[4]) == (0, -float("inf"), -4)
    with pytest.raises(UserError, match="none of 1 trials came to its end"):
        _choose_best("x.toml", [], Path("f"), [trials[3]])


def stored(number: int, state: str, value: float | None, reported: dict[int, float]) -> Any:
    kind = SimpleNamespace(name=state)
    return SimpleNamespace(
        number=number,
        state=kind,
        value=value,
        intermediate_values=reported,
        user_attrs={"lr": number},
    )


def study_of(*trials: Any, metric: MainMetric | None = None) -> Any:
    attributes = {} if metric is None else {KEY: metric.text()}
    told: list[Any] = []
    return SimpleNamespace(
        user_attrs=attributes,
        get_trials=lambda deepcopy: list(trials),
        told=told,
        tell=lambda trial, **how: told.append((trial.number, how)),
        set_user_attr=attributes.__setitem__,
    )


def test_a_trial_has_the_score_that_it_ended_with_or_the_last_before_it_was_left() -> None:
    study = study_of(
        stored(0, "COMPLETE", -2.0, {1: -9.0, 2: -2.0}),
        stored(1, "PRUNED", None, {2: -3.0, 1: -9.0}),
        stored(2, "PRUNED", None, {}),
        stored(3, "FAIL", None, {1: -1.0}),
        stored(4, "RUNNING", None, {1: -1.0}),
        metric=ERROR,
    )
    assert _ended_trials(study) == [
        Trial(0, "complete", 2.0, {"lr": 0}, ERROR),
        Trial(1, "pruned", 3.0, {"lr": 1}, ERROR),
        Trial(2, "pruned", None, {"lr": 2}, ERROR),
    ]


OPTUNA: Any = SimpleNamespace(
    trial=SimpleNamespace(TrialState=SimpleNamespace(PRUNED="pruned", FAIL="fail"))
)


def hear(rounds: int, metric: MainMetric, prune: bool, *scores: float | None) -> tuple[Any, Any]:
    """What a study is told while a trial has these scores, one after each round."""
    reported: dict[int, float] = {}
    trial = SimpleNamespace(
        number=7,
        report=lambda height, round: reported.__setitem__(round, height),
        should_prune=lambda: prune,
    )
    heard: list[Trial] = []
    study = study_of(stored(6, "COMPLETE", 1.0, {}), stored(7, "COMPLETE", 2.0, {}))
    listen = _listener(OPTUNA, study, trial, heard.append)
    try:
        for round, score in enumerate(scores, 1):
            own = {} if score is None else {"validation": score}
            listen(RoundDone(round, rounds, 1, 0.0, 0, 0, 0, own, metric=metric))
    except Left:
        study.told.append("left")
    study.reported, study.heard = reported, [own.number for own in heard]
    return study.told, study


def test_a_trial_ends_with_its_last_score_and_less_is_better_where_it_is() -> None:
    told, study = hear(3, ERROR, True, None, None, 2.5)
    assert told == [(7, {"values": -2.5})] and study.reported == {3: -2.5} and study.heard == [7]
    told, study = hear(3, MainMetric(), False, 0.5, 0.75, None)
    assert told == [(7, {"values": 0.75})] and study.reported == {1: 0.5, 2: 0.75}
    assert MainMetric.read(study.user_attrs[KEY]) == MainMetric()


def test_a_trial_that_does_worse_is_left_after_an_evaluation() -> None:
    told, study = hear(3, MainMetric(), True, None, 0.5)
    assert told == [(7, {"state": "pruned"}), "left"] and study.heard == [7]
    assert hear(3, MainMetric(), False, None, 0.5)[0] == []
    assert hear(1, MainMetric(), False, None)[0] == [(7, {"values": -float("inf")})]


@pytest.mark.parametrize("cause", [Left(), KeyboardInterrupt()])
def test_trials_are_done_one_by_one_and_only_those_that_were_left_make_way(
    cause: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[Any] = []

    def play(config: Any, folder: Path, on_round: Any) -> None:
        done.append((config, str(folder), on_round))
        if len(done) == 1:
            raise Interrupted("x", "y") from cause

    monkeypatch.setattr(tune, "run", play)
    prepared: Any = SimpleNamespace(engine=Sequential(), config="config")
    listener: Any = "listener"
    runs = [Waiting(prepared, Path(name), listener) for name in "ab"]
    if isinstance(cause, Left):
        tune._try_settings(iter(runs))
        assert done == [("config", "a", "listener"), ("config", "b", "listener")]
    else:
        with pytest.raises(Interrupted):
            tune._try_settings(iter(runs))
        assert len(done) == 1
    tune._try_settings(iter([]))


def test_trials_of_stacks_are_done_side_by_side(monkeypatch: pytest.MonkeyPatch) -> None:
    queued: list[Any] = []
    monkeypatch.setattr(
        tune, "run_queue", lambda runs, at_once: queued.append((names([*runs]), at_once))
    )
    prepared: Any = SimpleNamespace(engine=Vectorised())
    tune._try_settings(iter([Waiting(prepared, Path(name)) for name in "ab"]))
    assert queued == [(["a", "b"], 8)]


def test_a_search_goes_on_with_trials_that_were_killed_and_with_other_luck() -> None:
    """Two trials were running: they are told to have failed, and are tried again first."""
    told: list[Any] = []
    killed = [SimpleNamespace(number=n, params={"lr": n}) for n in (2, 3)]
    study = SimpleNamespace(
        get_trials=lambda deepcopy, states: killed if states == ("running",) else [],
        tell=lambda number, state: told.append((number, state)),
        enqueue_trial=lambda params: told.append(params),
        trials=[0] * 5,
    )
    created: list[Any] = []
    states = SimpleNamespace(RUNNING="running", FAIL="fail")
    optuna: Any = SimpleNamespace(
        logging=SimpleNamespace(set_verbosity=created.append, WARNING="warning"),
        create_study=lambda **how: created.append(how) or study,
        trial=SimpleNamespace(TrialState=states),
        samplers=SimpleNamespace(TPESampler=lambda seed: ("tpe", seed)),
        pruners=SimpleNamespace(MedianPruner=lambda **how: how),
    )
    assert tune._study(optuna, Path("/f"), 100) is study
    assert told == [(2, "fail"), {"lr": 2}, (3, "fail"), {"lr": 3}]
    assert study.sampler == ("tpe", 105)
    assert study.pruner == {"n_startup_trials": 5, "n_warmup_steps": 1}
    assert created == [
        "warning",
        {
            "storage": "sqlite:////f/study.db",
            "study_name": "fedblocks",
            "direction": "maximize",
            "load_if_exists": True,
        },
    ]


def test_a_setting_that_cannot_be_is_told_to_have_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(what: str, changes: Sequence[str]) -> Any:
        raise UserError(f"{what} {changes}", "no")

    monkeypatch.setattr(tune, "_config", refuse)
    study = study_of()
    attributes: dict[str, Any] = {}
    study.ask = lambda: SimpleNamespace(number=7, set_user_attr=attributes.__setitem__)
    space: Any = {"lr": SimpleNamespace(suggest=lambda trial, name: f"{name} {trial.number}")}
    tell: Any = None
    search = tune.Search("x", ["rounds=2"], space, Path("f"), None, tell)
    assert [*tune._ask(OPTUNA, study, search, 2)] == []
    assert study.told == [(7, {"state": "fail"})] * 2 and attributes == {"lr": "lr 7"}
    assert study.user_attrs["refused-7"] == "x ['rounds=2', 'lr=lr 7']"
    assert [*tune._ask(OPTUNA, study, search, 0)] == []


@pytest.mark.parametrize(
    ("engines", "on_gpu", "worth", "together"),
    [
        (["vectorised", "vectorised"], False, True, True),
        (["vectorised", "sequential"], False, True, False),
        (["sequential", "sequential"], False, True, False),
        (["sequential", "sequential"], True, True, True),
        (["vectorised", "vectorised"], False, False, False),
        (["vectorised"], True, True, False),
    ],
)
def test_new_runs_of_a_method_are_lanes_where_all_are_stacked_or_on_a_gpu(
    engines: list[str],
    on_gpu: bool,
    worth: bool,
    together: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    queued: list[list[str]] = []
    monkeypatch.setattr(grids, "prepare", lambda config: config)
    monkeypatch.setattr(grids, "worth_it", lambda prepared: worth)
    monkeypatch.setattr(grids, "run_queue", lambda runs, *_: queued.append(names(runs)))
    monkeypatch.setattr(grids.torch.cuda, "is_available", lambda: on_gpu)
    cells = [("ditto", seed) for seed in range(len(engines))]
    done = cell_folder(tmp_path, "ditto", 9)
    done.mkdir(parents=True)
    (done / "config.toml").touch()  # what was begun is no lane
    grid: Any = SimpleNamespace(
        cells=[*cells, ("ditto", 9), ("local", 0)],
        config=lambda method, seed: SimpleNamespace(
            engine=[*engines, "sequential"][min(seed, len(engines))]
        ),
    )
    grids._lanes(tmp_path, grid, "ditto", None, None)
    folders = [str(cell_folder(tmp_path, *cell)) for cell in cells]
    assert queued == ([folders] if together else [])


def test_clients_of_all_lanes_are_scored_in_stacks_of_the_largest_size(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[Any] = []

    class Together:
        def __init__(self, experiments: Any) -> None:
            asked.append(experiments)

        def run_round(self, *args: Any) -> Any:
            asked.append(args)
            return [("state", "first"), ("state", "second")]

    def attempt(play: Any, engine: Any, count: int, notes: Any) -> Any:
        asked.append(count)
        return engine, play(engine)

    monkeypatch.setattr(lanes, "Lanes", Together)
    monkeypatch.setattr(lanes, "attempt", attempt)
    prepared: Any = [
        SimpleNamespace(experiment="a", clients=[0, 1, 2]),
        SimpleNamespace(experiment="b", clients=[0, 1]),
    ]
    states: Any = ["s", "t"]
    assert lanes.score_together(prepared, states, "test") == ["first", "second"]
    clients = [[0, 1, 2], [0, 1]]
    assert asked == [["a", "b"], 5, (states, clients, Vectorised(chunk=512), "test")]


def test_a_search_has_a_folder_of_its_own_and_only_the_trials_that_are_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of five trials two have ended; the folder is named after method, data and plan."""
    base: Any = SimpleNamespace(
        method=SimpleNamespace(name="ditto"), data=SimpleNamespace(name="digits"), seed=4
    )
    done: list[Any] = []
    ended = [Trial(0, "complete", 0.5, {}), Trial(1, "pruned", 0.25, {})]
    monkeypatch.setattr(tune, "RUNS", tmp_path)
    monkeypatch.setattr(tune, "_optuna", lambda: OPTUNA)
    monkeypatch.setattr(tune, "parse_space", lambda changes: ({"lr": 1}, ["rounds=2"]))
    monkeypatch.setattr(tune, "_check_examples", lambda *args: base)
    monkeypatch.setattr(tune, "_key", lambda base, space: "0123")
    monkeypatch.setattr(tune, "_begin", lambda folder, base, space: done.append(folder))
    monkeypatch.setattr(tune, "_study", lambda optuna, folder, seed: (folder, seed))
    monkeypatch.setattr(tune, "_ended_trials", lambda study: ended)
    monkeypatch.setattr(tune, "_ask", lambda optuna, study, search, left: (study, search, left))
    monkeypatch.setattr(tune, "_try_settings", done.append)
    own = tmp_path / "tune-ditto-digits-0123"
    found = tune.tune("x.toml", ["lr=?"], 5)
    begun, (study, search, left) = done
    assert begun == own == found.folder and study == (own, 4) and left == 3
    assert (search.what, search.fixed, search.folder) == ("x.toml", ["rounds=2"], own)
    assert found.best is ended[0] and found.trials == ended
    assert tune.tune("x.toml", [], 5, tmp_path / "other").folder == tmp_path / "other"
