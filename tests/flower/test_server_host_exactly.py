"""The server of a federation: what it does in turn, and how its jobs are stopped."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("flwr")

from fedblocks.core.errors import Interrupted, UserError
from fedblocks.flower.hosts import launch, running
from fedblocks.flower.hosts import server_host as module
from fedblocks.flower.hosts.folders import ServerHost
from fedblocks.flower.server.jobs import load_job, update_job

from .stored_jobs import stored

HOST = ServerHost(federation="f", address="127.0.0.1", port=11, inner_port=12, insecure=True,
                  bind="127.0.0.1", clients={"ann": (0,), "bob": (1,)})  # fmt: skip


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    HOST.write(tmp_path / "server")
    monkeypatch.setattr(module, "TEND", 0.0)
    return tmp_path / "server"


@pytest.mark.parametrize("left", [0, 1])
def test_a_server_is_checked_started_and_looked_after_until_it_is_ended(
    left: int, server: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[Any] = []
    looks = iter([None, None, KeyboardInterrupt()])

    def look_after(processes: Any, folder: Path, tell: Any) -> None:
        done.append(("look after", processes, folder))
        tell("odd")
        if (end := next(looks)) is not None:
            raise end

    def watch(name: str) -> Any:
        own = SimpleNamespace(
            look=lambda: done.append(name), follow=lambda p: done.append((name, p))
        )
        return lambda folder, tell: done.append((f"{name} of", folder)) or own

    monkeypatch.setattr(module, "ended_politely", nullcontext)
    hold = lambda folder: done.append(("held", folder)) or nullcontext()
    monkeypatch.setattr(module, "hold_server_folder", hold)
    monkeypatch.setattr(module, "ProcessGroup", lambda *what: done.append(what) or nullcontext("p"))
    monkeypatch.setattr(module, "check_server", lambda folder, tell: done.append("checked"))
    monkeypatch.setattr(module, "KeyWatch", watch("keys"))
    monkeypatch.setattr(module, "CertificateWatch", watch("certificate"))
    monkeypatch.setattr(running, "start_server", lambda p, folder, tell: done.append(p) or HOST)
    monkeypatch.setattr(running, "look_after", look_after)
    for _ in range(left):
        stored(server)
    told: list[str] = []
    module.host_server(server, told.append)
    variables = {**launch.environment(server), "FEDBLOCKS_SERVER": str(server)}
    turn = ["certificate", ("keys", "p"), ("look after", "p", server)]
    assert done == [("held", server), (server / "logs", variables), "checked", ("keys of", server),
                    ("certificate of", server), "p", *turn * 3]  # fmt: skip
    later = "; 1 unfinished job will go on when it is started again" if left else ""
    ready = "ready: 2 machines with a key may connect to 127.0.0.1:11"
    assert told == [ready, "odd", f"stopping{later}"]


def test_a_text_is_told_again_after_another_one() -> None:
    told: list[str] = []
    tell = module._without_repeats(told.append)
    for text in "aabba":
        tell(text)
    assert told == ["a", "b", "a"]


def test_the_jobs_of_one_run_are_stopped_or_all_if_they_are_of_one_run(
    server: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stopped: list[str] = []
    monkeypatch.setattr(module, "_stop", lambda own, record: stopped.append(record.name))
    train = stored(server, "/z")
    adapt = stored(server, "/z", kind="adapt")
    told: list[str] = []
    assert module.stop_jobs(server, None, told.append) == [train, adapt]
    assert told == ["stopping the run /z", "stopping to give models of /z"]
    assert stopped == [train.name, adapt.name]
    other = stored(server, "/a")
    more = [stored(server, f"/{letter}") for letter in "hdfec"]  # in no order by chance
    stored(server, "/b", status="finished")
    with pytest.raises(UserError) as several:
        module.stop_jobs(server, None, told.append)
    assert several.value.message == "several runs have jobs: /a, /c, /d, /e, /f, /h, /z"
    assert several.value.fix == f"name one: fedblocks federation stop {server} FOLDER"
    assert module.stop_jobs(server, Path("/a"), told.append) == [other]
    with pytest.raises(UserError, match=r"^nothing to stop: no job of /b is running"):
        module.stop_jobs(server, Path("/b"), told.append)
    for record in (train, adapt, other, *more):
        update_job(server, record.name, status="stopped")
    with pytest.raises(UserError, match=f"^nothing to stop: no job of {server} is running"):
        module.stop_jobs(server, None, told.append)


@pytest.mark.parametrize(
    ("fails", "worked_on", "status"),
    [(False, False, "stopped"), (True, False, "stopped"), (True, True, "running")],
)
def test_a_job_is_stopped_in_its_file_and_then_in_flower(
    fails: bool, worked_on: bool, status: str, server: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = stored(server, status="running", flower_run="7")
    done: list[Any] = []

    def ask(own: Path, *words: str) -> Any:
        done.append((load_job(own, record.name).status, *words))
        if fails:
            raise UserError("away", "wait")

    def until(is_ready: Any, seconds: float, check: Any, what: str) -> None:
        done.append((is_ready(), seconds, what, check()))

    monkeypatch.setattr(launch, "ask", ask)
    monkeypatch.setattr(launch, "until", until)
    monkeypatch.setattr(module, "is_worked_on", lambda *who: worked_on)
    if worked_on:
        with pytest.raises(UserError, match="away"):
            module._stop(server, record)
    else:
        module._stop(server, record)
    waited = [] if worked_on else [(True, 90.0, "the end of the job", None)]
    assert done == [("stopped", "stop", "7"), *waited]
    assert load_job(server, record.name).status == status


def test_a_job_is_waited_for_until_it_is_over(
    server: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = stored(server)
    states = iter(["running", "finished"])
    slept: list[float] = []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        update_job(server, record.name, status=next(states))

    monkeypatch.setattr(module, "TEND", 1.5)
    monkeypatch.setattr(module, "time", SimpleNamespace(sleep=sleep))
    assert module._wait_for(server, record).status == "finished" and slept == [1.5, 1.5]

    def interrupted(seconds: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(module, "time", SimpleNamespace(sleep=interrupted))
    with pytest.raises(Interrupted, match="the server goes on giving models") as ended:
        module._wait_for(server, record)
    assert ended.value.fix.endswith(f"federation stop {server} /run")


def test_clients_without_a_key_are_named_in_order(server: Path) -> None:
    module._refuse_strangers(HOST, server, [1, 0])
    with pytest.raises(UserError, match=r"^no key is enrolled for client 3, 8") as refused:
        module._refuse_strangers(HOST, server, [8, 0, 3])
    assert refused.value.fix.endswith(f"enrol {server} NAME.pub --client 3")


@pytest.mark.parametrize(("most", "refused"), [(11, False), (12, True)])
def test_a_newcomer_has_a_number_of_the_run(
    most: int, refused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [{"client": 8}, {"client": 3}, {"client": 1}]
    folder: Any = SimpleNamespace(store=SimpleNamespace(rows=lambda query: rows))
    config = SimpleNamespace(data=SimpleNamespace(clients=12))
    monkeypatch.setattr(module, "stored_config", lambda folder: config)
    told: list[str] = []
    if refused:
        with pytest.raises(UserError, match=r"client 12 is none of this run.* they are 0 to 11"):
            module._check_newcomers(folder, [8, most], told.append)
    else:
        module._check_newcomers(folder, [8, most, 3], told.append)
        assert [text.partition(" took part")[0] for text in told] == ["client 3", "client 8"]


class Record:
    """Stands in for a run's record, in which a job notes what it did."""

    def __init__(self, last: int | None = 2) -> None:
        self.last = last
        self.notes = [(2, "client 3 before"), (3, "client 30 is other"), (4, "odd"),
                      (5, "client 3 has its model")]  # fmt: skip

    def last_round(self) -> int | None:
        return self.last

    def rows(self, query: str, *after: int) -> list[dict[str, Any]]:
        if "text" not in query:
            return [{"rowid": 1}, {"rowid": 2}]
        return [{"text": text} for number, text in self.notes if number > after[0]]


@pytest.mark.parametrize(
    ("status", "reason", "said"),
    [("finished", "", None), ("failed", "no data", "no data"), ("stopped", "", "stopped")],
)
def test_models_are_asked_for_and_what_is_said_of_these_clients_is_told(
    status: str,
    reason: str,
    said: str | None,
    server: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    done: list[Any] = []
    record = SimpleNamespace(status=status, reason=reason, fix="", exit_code=1)
    run = SimpleNamespace(store=Record())
    monkeypatch.setattr(module, "_refuse_strangers", lambda *what: done.append(what[2]))
    monkeypatch.setattr(module, "_check_newcomers", lambda *what: done.append(what[1]))
    monkeypatch.setattr(running, "enrol", lambda *what: done.append(what[:2]))
    monkeypatch.setattr(module.RunFolder, "open", lambda path: nullcontext(run))
    monkeypatch.setattr(module, "job_for", lambda *what, **more: (*what, more))
    monkeypatch.setattr(running, "submit", lambda own, job: done.append((own, *job)) or "record")
    monkeypatch.setattr(module, "_wait_for", lambda own, what: done.append((own, what)) or record)
    told: list[str] = []
    go = lambda: module.adapt(server, tmp_path / "run", [3, 4], told.append, 9.0, 2.5)
    if said is None:
        go()
    else:
        with pytest.raises(UserError) as failed:
            go()
        assert failed.value.message == f"no models were given: {said}"
        assert failed.value.fix == f"see {server / 'logs' / 'superexec.log'}"
    asked = {"kind": "adapt", "clients": [3, 4], "seconds": 9.0, "patience": 2.5}
    assert done == [[3, 4], (HOST, server), [3, 4], (server, tmp_path / "run", "f", asked),
                    (server, "record")]  # fmt: skip
    text = "asked for models for client 3, 4; waiting until it is there, 2.5 s at most"
    assert told == [text, "client 3 has its model"]
