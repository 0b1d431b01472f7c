"""What a round leaves on record, which engine goes on, and what is said of it: worked by hand."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from fedblocks.core.admission import Refusal
from fedblocks.core.errors import UserError
from fedblocks.core.state import State
from fedblocks.core.task import Task
from fedblocks.engines import less_memory
from fedblocks.engines.close_round import Report
from fedblocks.engines.failures import FAILED, UNSCORED
from fedblocks.engines.processes.engine import Processes
from fedblocks.engines.round import Engine
from fedblocks.engines.sequential import Sequential
from fedblocks.engines.vectorised import Vectorised
from fedblocks.runs import engine_choice
from fedblocks.runs.broken_servers import _breaks
from fedblocks.runs.refusals import ADVICE, LARGE, Refused, notes_of_refusals
from fedblocks.runs.rounds import attempt, conclusions_of, metrics_of, record
from fedblocks.runs.storage.record import ClientMetric, Note, RefusalRow, Snapshot, Traffic


def state_with(round: int = 3, server: Any = None, private: Any = None) -> State:
    return State(round, server or {}, {}, private or {})


def test_a_record_has_who_was_asked_what_travelled_and_what_was_refused() -> None:
    """Client 7 sent nothing and was asked; 9 was tried in vain, which is no update that is lost."""
    refusals = [Refusal(7, "crashed", "on purpose"), Refusal(9, UNSCORED, "KeyError")]
    report = Report([0, 1], {"model": {0: 8, 1: 8, 7: 8}}, {"model": {0: 4}}, refusals, {})
    stored = record(state_with(), report, [], None, [Note("first")])
    assert (stored.round, stored.seconds, stored.clients) == (3, 0.0, 3)
    assert stored.traffic == [
        Traffic(0, "model", "down", 8),
        Traffic(1, "model", "down", 8),
        Traffic(7, "model", "down", 8),
        Traffic(0, "model", "up", 4),
    ]
    assert (stored.sent("down"), stored.sent("up")) == (24, 4)
    assert stored.refusals == [
        RefusalRow(7, "crashed", "on purpose"),
        RefusalRow(9, UNSCORED, "KeyError"),
    ]
    assert stored.snapshots == [] and stored.notes == [Note("first")]


def test_small_private_blocks_and_portraits_are_kept_where_models_were_tried() -> None:
    """Up to 256 numbers of a block or of a portrait; a portrait stands for the block of its name.

    A block may have several tensors: 255 and 1 numbers are few enough, 255 and 2 are not.
    """
    fits = {"w": torch.zeros(255), "b": torch.ones(1)}
    blocks = {"fits": fits, "large": {"w": torch.zeros(255), "b": torch.ones(2)}, "mix": fits}
    private = {4: blocks}
    portraits = {"mix": {4: [0.5]}, "map": {4: [1.0] * 256}, "huge": {4: [1.0] * 257}}
    report = Report([4], {}, {}, [], {})
    kept = record(state_with(private=private), report, [], portraits, []).snapshots
    assert kept == [
        Snapshot("fits", 4, [0.0] * 255 + [1.0]),
        Snapshot("mix", 4, [0.5]),
        Snapshot("map", 4, [1.0] * 256),
    ]
    assert record(state_with(private=private), report, [], None, []).snapshots == []


def test_a_loss_is_the_mean_over_scored_labels_and_undefined_without_any() -> None:
    counts = {"personal": {3: (2.0, 4.0, 6.0), 5: (0.0, 0.0, 0.0)}}
    three, five = metrics_of("test", counts, Task())
    assert three == ClientMetric("test", "personal", 3, 2.0, 4.0, 1.5, None)
    assert five[:5] == ("test", "personal", 5, 0.0, 0.0) and math.isnan(five.loss)


@pytest.mark.parametrize(("round", "is_last"), [(4, False), (5, True)])
def test_methods_conclude_from_the_portraits_of_their_own_clients_after_the_last_round(
    round: int, is_last: bool
) -> None:
    portraits = {"mix": {0: [0.1], 2: [0.2], 8: [0.9]}}
    groups = {"a": [0, 1], "b": [2]}
    say = lambda own: [f"{own}"]
    methods = {
        "a": SimpleNamespace(conclusions=lambda own: ["a", *say(own)]),
        "b": SimpleNamespace(conclusions=say),
    }
    experiment = SimpleNamespace(members=lambda clients: groups, methods=methods)
    prepared: Any = SimpleNamespace(
        experiment=experiment, clients=[0, 1, 2], config=SimpleNamespace(rounds=6)
    )
    said = ["a", "{'mix': {0: [0.1]}}", "{'mix': {2: [0.2]}}"] if is_last else []
    assert conclusions_of(prepared, round, portraits) == [Note(text, "warning") for text in said]
    assert conclusions_of(prepared, round, None) == []


class _Odd(Exception):
    """An error of a net that cannot be stacked."""


@pytest.mark.parametrize(
    ("engine", "clients", "chunks"),
    [
        (Vectorised(chunk=8), 100, [8, 4, 2, 1]),
        (Vectorised(chunk=64), 6, [64, 3, 1]),
        (Vectorised(chunk=1), 6, [1]),
        (Sequential(), 6, [0]),
    ],
)
def test_where_memory_does_not_suffice_half_as_many_clients_are_taken_down_to_one(
    engine: Engine, clients: int, chunks: list[int]
) -> None:
    tried: list[int] = []
    notes: list[Note] = []

    def fail(engine: Engine) -> None:
        tried.append(engine.chunk if isinstance(engine, Vectorised) else 0)
        raise torch.OutOfMemoryError("full")

    with pytest.raises(UserError, match="one client alone does not fit"):
        attempt(fail, engine, clients, notes)
    assert tried == chunks
    says = ["client" if chunk == 1 else "clients" for chunk in chunks[1:]]
    texts = [f"out of memory: from now on {n} {c} at once" for n, c in zip(chunks[1:], says)]
    assert notes == [Note(text, "warning") for text in texts]


def test_a_library_that_finds_no_memory_means_fewer_clients_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    notes: list[Note] = []

    def work(engine: Engine) -> str:
        if isinstance(engine, Vectorised) and engine.chunk > 4:
            raise RuntimeError("cuDNN error: CUDNN_STATUS_INTERNAL_ERROR")
        return engine.name

    engine, said = attempt(work, Vectorised(chunk=8), 100, notes)
    assert (engine, said) == (Vectorised(chunk=4), "vectorised")
    assert notes == [Note("out of memory: from now on 4 clients at once", "warning")]
    for others, said in ((3 * 2**30, ", of which other programs hold 3.0 GiB\n"), (0, "device\n")):
        monkeypatch.setattr(less_memory, "held_by_others", lambda others=others: others)
        with pytest.raises(UserError, match=said) as caught:
            attempt(no_memory, Sequential(), 5, [])
        assert caught.value.fix.startswith("end these" if others else "use a smaller net")


def no_memory(engine: Engine) -> None:
    raise MemoryError


def test_a_stack_that_fails_goes_on_one_by_one_and_what_fails_so_is_raised() -> None:
    notes: list[Note] = []

    def work(engine: Engine) -> str:
        if isinstance(engine, Vectorised):
            raise _Odd
        return engine.name

    engine, said = attempt(work, Vectorised(chunk=4), 4, notes)
    assert (type(engine), said) == (Sequential, "sequential")
    text = "from now on one client after another: a stack of clients failed (_Odd)"
    assert notes == [Note(text, "warning")]
    for error, first in ((_Odd("x"), Sequential()), (UserError("x", "y"), Vectorised(chunk=4))):

        def fail(engine: Engine, error: Exception = error) -> None:
            raise error

        with pytest.raises(type(error)):
            attempt(fail, first, 4, notes)
    assert len(notes) == 1


NAN = {"w": torch.tensor([0.0, torch.nan])}


@pytest.mark.parametrize(
    ("reasons", "server", "said"),
    [
        ({0: "shape"}, {}, ""),
        ({0: "shape", 1: FAILED}, {}, ""),
        ({0: "shape", 1: UNSCORED}, {}, ""),
        ({0: "shape", 7: "shape"}, {}, ""),  # 7 was not there
        ({0: "shape", 1: "names"}, {}, "(shape: of 0)"),
        (
            {0: "not-finite", 1: "names"},
            {},
            f"(not-finite: of 0); {LARGE}, or try a lower learning rate",
        ),
        ({0: "not-finite", 1: "names"}, {"model": NAN}, '; the server\'s block "model" is NaN'),
    ],
)
def test_a_round_is_warned_of_from_which_every_update_was_refused(
    reasons: dict[int, str], server: Any, said: str
) -> None:
    refusals = [Refusal(client, reason, f"of {client}") for client, reason in reasons.items()]
    server = {"other": {"w": torch.zeros(1)}, **server}
    notes = notes_of_refusals(Report([0, 1], {}, {}, refusals, {}), state_with(server=server))
    assert bool(notes) == bool(said)
    if said:
        (note,) = notes
        assert note.text.endswith(said) and note.level == "warning"
        assert note.text.startswith("every update was refused (")
    assert notes_of_refusals(Report([], {}, {}, [], {}), state_with()) == []


def test_advice_follows_the_reason_and_a_known_cause_comes_first() -> None:
    refused = Refused(1, 2, 1, 2, "not-finite: NaN")
    assert refused.advice == ADVICE
    assert refused._replace(cause="Own.conclude").advice == "Own.conclude"
    assert refused._replace(reason="failed: KeyError").advice == ""


def test_a_server_breaks_where_it_had_numbers_before() -> None:
    good = {"v": torch.zeros(2), "w": torch.zeros(2)}
    bad = {**good, **NAN}
    assert _breaks(good, bad)
    assert not (_breaks(bad, bad) or _breaks(bad, good) or _breaks(good, good))


def config_with(**changes: Any) -> Any:
    usual = {"memory": None, "chunk": 16, "processes": None, "threads": None, "engine": "auto"}
    return SimpleNamespace(**{**usual, "rounds": 10, **changes})


def experiment_with(epochs: list[int], rows: list[int], numbers: int) -> Any:
    net = SimpleNamespace(size=lambda: numbers)
    phases = [SimpleNamespace(epochs=own) for own in epochs]
    method = SimpleNamespace(net=net, phases=lambda: phases)
    sizes = torch.tensor(rows, dtype=torch.double)
    data = SimpleNamespace(train=SimpleNamespace(sizes=sizes))
    return SimpleNamespace(methods={"all": method}, data=data)


@pytest.mark.parametrize(
    ("edge", "short"), [(14_399.0, False), (14_400.0, False), (14_401.0, True)]
)
def test_a_run_is_short_by_the_operations_that_it_takes(
    edge: float, short: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """6 * 10 rounds * 2 clients * (1 + 2) epochs * 4 rows (of 2 and 6) * 10 numbers = 14,400."""
    monkeypatch.setattr(engine_choice.Net, "size", lambda net: net.size())
    experiment = experiment_with([1, 2], [2, 6], 10)
    assert engine_choice._is_short(config_with(), experiment, 2, edge) == short


@pytest.mark.parametrize(
    ("changes", "count"),
    [({"processes": 3, "threads": 2}, 3), ({"threads": 2}, 2), ({}, 5), ({"threads": 999}, 256)],
)
def test_as_many_processes_work_as_are_asked_for_or_as_there_are_threads_or_cores(
    changes: dict[str, int], count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_choice, "cores", lambda: 5)
    config, cpu = config_with(engine="processes", **changes), torch.device("cpu")
    engine, why = engine_choice.engine_of(config, None, 8, cpu, [])  # type: ignore[arg-type]
    assert isinstance(engine, Processes) and engine.count == count
    assert why == f"as configured, {count} of them"


def test_an_engine_by_name_has_the_chunk_of_the_configuration() -> None:
    nothing: Any = None
    choose = lambda name: engine_choice.engine_of(
        config_with(engine=name), nothing, 8, torch.device("cpu"), []
    )
    vectorised, why = choose("vectorised")
    assert vectorised == Vectorised(chunk=16) and why == "as configured"
    assert choose("sequential") == (Sequential(), "as configured")
