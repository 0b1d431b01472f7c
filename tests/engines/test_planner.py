"""Which engine is chosen on a CPU: from trials that are remembered, and never by a coin."""

from __future__ import annotations

import json
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from fedblocks.core.errors import UserError
from fedblocks.core.net import Net
from fedblocks.engines.auto import others
from fedblocks.engines.auto import trial as planner
from fedblocks.engines.auto.measured import CACHE
from fedblocks.engines.auto.trial import TrialPlan, fastest, planned
from fedblocks.engines.memory import ByteCount, bytes_of, measure_need
from fedblocks.engines.round import Experiment, evaluate_parts, run_round
from fedblocks.engines.vectorised import Vectorised
from fedblocks.methods import METHODS
from fedblocks.testing import EXAMPLES


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv(CACHE, str(tmp_path / "engines"))
    quiet(monkeypatch)
    return tmp_path / "engines"


def quiet(monkeypatch, cores: float = 0.0) -> None:
    """A machine on which others keep so many cores busy."""
    monkeypatch.setattr(planner, "Others", lambda: SimpleNamespace(cores=lambda: cores))


def plan(**changes) -> TrialPlan:
    example = EXAMPLES["fedavg"]()
    return TrialPlan(
        **{
            "experiment": example.experiment(),
            "clients": example.everybody,
            "cohort": 4,
            "processes": 2,
            **changes,
        }
    )


def rigged(monkeypatch, seconds: dict[str, float]) -> list[str]:
    asked: list[str] = []
    monkeypatch.setattr(
        planner,
        "measure_seconds",
        lambda engine, job: (asked.append(engine.name), seconds[engine.name])[1],
    )
    return asked


@pytest.mark.parametrize(
    ("seconds", "best"),
    [
        ({"sequential": 1.0, "vectorised": 2.0, "processes": 0.6}, "processes"),
        ({"sequential": 1.0, "vectorised": 0.5, "processes": 0.6}, "vectorised"),
        ({"sequential": 1.0, "vectorised": 0.95}, "sequential"),  # hardly faster
        ({"sequential": 1.0, "vectorised": 0.9, "processes": 0.95}, "processes"),  # the same bits
        # about the same: workers suffer less from other programs
        ({"sequential": 1.0, "processes": 1.04}, "processes"),
        ({"sequential": 1.0, "processes": 1.06}, "sequential"),
        ({"sequential": 1.0}, "sequential"),
    ],
)
def test_another_engine_must_be_clearly_faster(seconds, best) -> None:
    assert fastest(seconds) == best


def test_a_choice_is_remembered_and_says_what_was_measured(monkeypatch) -> None:
    asked = rigged(monkeypatch, {"sequential": 0.04, "vectorised": 0.08, "processes": 0.02})
    engine, why = planned(plan())
    assert engine.name == "processes" and engine.count == 2
    assert why == "processes 20 ms, sequential 40 ms, vectorised 80 ms for a few steps of this net"
    count = len(asked)
    again = planned(plan())[1]
    assert again.startswith(f"{why}, measured at 20") and again.endswith(" UTC")
    assert len(asked) == count


def test_what_was_measured_beside_other_programs_counts_for_an_hour(monkeypatch, folder) -> None:
    asked = rigged(monkeypatch, {"sequential": 0.04, "vectorised": 0.08, "processes": 0.02})
    monkeypatch.setattr(planner.os, "cpu_count", lambda: 4)
    quiet(monkeypatch, 2.6)  # of 4 cores the trial needs 2, and half a one is always busy
    assert planned(plan())[1].endswith("beside other programs; measured again after an hour")
    rigged(monkeypatch, {"sequential": 0.01, "vectorised": 0.08, "processes": 0.02})
    assert planned(plan())[0].name == "processes"  # runs side by side choose alike
    (file,) = folder.glob("*.json")
    stored = json.loads(file.read_text())
    file.write_text(json.dumps({**stored, "at": stored["at"] - 3601}))
    quiet(monkeypatch, 2.4)
    engine, why = planned(plan())
    assert engine.name == "sequential" and why.endswith("for a few steps of this net") and asked
    stored = json.loads(file.read_text())
    file.write_text(json.dumps({**stored, "at": stored["at"] - 1e7}))
    rigged(monkeypatch, {"sequential": 0.04, "vectorised": 0.08, "processes": 0.02})
    assert planned(plan())[0].name == "sequential"  # undisturbed: for good


def test_cores_of_others_are_all_without_our_own(monkeypatch, tmp_path) -> None:
    """200 ticks more in user mode and 50 in the kernel, 1000 idle: 2.5 s at 100 ticks a second."""
    monkeypatch.setattr(others, "STAT", tmp_path / "stat")
    monkeypatch.setattr(others.os, "sysconf", lambda name: 100)
    monkeypatch.setattr(others, "_own_seconds", iter([1.0, 1.5]).__next__)
    monkeypatch.setattr(others.time, "perf_counter", iter([0.0, 2.0]).__next__)
    (tmp_path / "stat").write_text("cpu  100 0 50 700 10 0 0 0 0 0\ncpu0 1\n")
    beside = others.Others()
    (tmp_path / "stat").write_text("cpu  300 0 100 1700 90 0 0 0 9 9\ncpu0 1\n")
    assert beside.cores() == (2.5 - 0.5) / 2


def test_without_a_count_of_ticks_the_load_of_the_last_minute_says_it(monkeypatch, tmp_path):
    monkeypatch.setattr(others, "STAT", tmp_path / "none")
    monkeypatch.setattr(others.os, "getloadavg", lambda: (3.5, 0.0, 0.0))
    assert others.Others().cores() == 2.5


def test_what_matters_is_measured_anew(monkeypatch) -> None:
    asked = rigged(monkeypatch, {"sequential": 0.04, "vectorised": 0.08, "processes": 0.02})
    counts = []
    for changes in (
        {},
        {"cohort": 3},
        {"threads": 2},
        {"chunk": 2},
        {"experiment": EXAMPLES["fedper"]().experiment()},
    ):
        planned(plan(**changes))
        counts.append(len(asked))
    assert len(set(counts)) == 5


def test_who_wrote_first_decides_for_all(monkeypatch, folder) -> None:
    rigged(monkeypatch, {"sequential": 0.04, "vectorised": 0.08, "processes": 0.02})
    planned(plan())
    (file,) = folder.glob("*.json")
    seconds = {"sequential": 1.0, "vectorised": 0.1}
    file.write_text(json.dumps({"seconds": seconds, "is_disturbed": False, "at": 1.0}))
    assert planned(plan())[0].name == "vectorised"
    file.write_text("damaged")
    assert planned(plan())[0].name == "processes"


def test_a_net_that_takes_long_is_not_tried_as_a_stack(monkeypatch) -> None:
    asked = rigged(monkeypatch, {"sequential": 2 * planner.LONG, "processes": planner.LONG})
    assert planned(plan())[0].name == "processes" and "vectorised" not in asked


def test_engines_that_cannot_be_used_are_not_tried() -> None:
    assert list(plan(processes=1).engines()) == ["sequential", "vectorised"]
    assert list(plan(cohort=1).engines()) == ["sequential", "vectorised"]


def test_a_trial_does_no_more_steps_than_clients_do() -> None:
    here = plan()
    method = here.experiment.methods[here.group]
    longest = max(len(batches[0]) for batches in planner.trial_job(here, 9, 100).batches)
    # one epoch of clients of the example; it was as many steps as asked for, epoch after epoch
    sizes = here.experiment.data.train.sizes[list(here.clients)]
    assert longest == np.ceil(np.mean(np.ceil(sizes / method.batch_size)))
    assert [len(batches[0]) for batches in planner.trial_job(here, 2, 1).batches] == [1, 1]


def test_every_turn_of_a_trial_is_a_round_of_its_own(monkeypatch) -> None:
    rounds: dict[str, list[int]] = {}

    def note(engine, job) -> float:
        rounds.setdefault(engine.name, []).append(job.cohort.round)
        return 1e-3

    monkeypatch.setattr(planner, "measure_seconds", note)
    planner.try_out(plan())
    assert rounds["processes"] == rounds["vectorised"] == [*range(8)]


def test_real_trials_end_with_the_number_of_threads_they_found() -> None:
    before = torch.get_num_threads()
    actual = planner.try_out(plan(threads=1, processes=1))
    assert actual.keys() == {"sequential", "vectorised"} and min(actual.values()) > 0
    assert torch.get_num_threads() == before


@pytest.mark.parametrize(
    ("text", "size"), [("8GiB", 8 * 2**30), ("1.5 MB", 1_500_000), ("512", 512)]
)
def test_an_amount_of_memory_is_read_as_it_is_written(text, size) -> None:
    assert bytes_of(text) == size


@pytest.mark.parametrize("text", ["", "GiB", "8 apples", "-1GiB", "0MB"])
def test_what_is_no_amount_of_memory_is_refused(text) -> None:
    with pytest.raises(UserError, match="not an amount of memory"):
        bytes_of(text)


METHODS_BY_MEMORY = {
    "fedavg": {},
    "pfedmb": {"branches": 8},
    "fedem": {"components": 4},
    "ditto": {},
    "fedamp": {},
}


def experiment_of(name: str, **options) -> Experiment:
    """Twelve clients with the data of three, and a net that takes more than they do."""
    data = EXAMPLES["fedavg"]().federation.subset([0, 1, 2] * 4)
    inputs = data.x[0].numel()
    layers = lambda: nn.Sequential(
        nn.Flatten(), nn.Linear(inputs, 64), nn.ReLU(), nn.Linear(64, data.classes)
    )
    return Experiment.of(METHODS[name](Net.of(layers, dtype=data.x.dtype), **options), data)


@pytest.mark.parametrize(("name", "options"), METHODS_BY_MEMORY.items())
def test_a_round_takes_at_most_half_more_than_the_memory_that_was_asked_for(name, options) -> None:
    experiment = experiment_of(name, **options)
    everybody = range(experiment.data.clients)
    need = measure_need(experiment, "all", ["test"])
    memory = need.bytes(len(everybody), 3)
    chunk = need.chunk(memory, len(everybody), len(everybody))
    assert chunk >= 3  # more, where something else than training takes most
    engine = Vectorised(chunk=chunk)
    with ByteCount() as count:
        state, _ = run_round(experiment, experiment.start(), everybody, engine)
        evaluate_parts(experiment, state, everybody, engine, ["test"])
    assert count.most < 1.5 * memory
    assert count.most > need.bytes(len(everybody), chunk) / 1.5  # nor is room left unused


def test_branches_and_components_take_the_memory_of_so_many_nets() -> None:
    one, several = (
        measure_need(experiment_of("pfedmb", branches=b), "all", ["test"]) for b in (1, 8)
    )
    assert several.bytes(12, 12) > 4 * one.bytes(12, 12)


def test_a_memory_in_which_no_client_fits_is_refused() -> None:
    need = measure_need(experiment_of("fedavg"), "all", ["test"])
    least = need.bytes(3, 1)
    assert need.chunk(least, 3, 64) == 1 and need.chunk(10**12, 3, 64) == 64
    with pytest.raises(UserError, match="a round of 3 clients, trained one after another, needs"):
        need.chunk(least - 1, 3, 64)


def test_another_version_of_the_engines_is_tried_anew(monkeypatch) -> None:
    before = plan().key()
    assert plan().key() == before
    monkeypatch.setattr(planner, "source_digest", lambda: "another")
    assert plan().key() != before
