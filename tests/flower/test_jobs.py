"""Every job of a server has a file of its own: several go on at once, and all that are
unfinished are taken up.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'fedblocks[flower]'")

from flwr.app import Message

from fedblocks.core.errors import Interrupted, UserError
from fedblocks.flower.client.app import client_app
from fedblocks.flower.client.prepare import sides_at
from fedblocks.flower.hosts import launch, running
from fedblocks.flower.hosts import server_host as hosting
from fedblocks.flower.hosts.federation import check_job, go_on, job_for
from fedblocks.flower.hosts.status import status_of
from fedblocks.flower.server import service
from fedblocks.flower.server.jobs import (
    JobRecord,
    add_job,
    all_jobs,
    command_for,
    is_worked_on,
    load_job,
    unfinished_jobs,
    update_job,
    working_on,
)
from fedblocks.runs.result import load_run
from fedblocks.runs.storage.folder import RunFolder

from .local_grid import LocalGrid
from .test_service import TABLE, Host


class Flower:
    """What `flwr` would answer."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, ...]] = []
        self.runs = 0
        self.status: dict[str, str] = {}

    def __call__(self, folder: Path, *words: str) -> dict[str, Any]:
        self.asked.append(words)
        if words[0] == "run":
            self.runs += 1
            return {"run-id": self.runs}
        status = self.status.get(words[-1], "running")
        return {
            "runs": [] if status == "forgotten" else [{"status": status, "status-details": "why"}]
        }


@pytest.fixture
def flower(monkeypatch: pytest.MonkeyPatch) -> Flower:
    answers = Flower()
    monkeypatch.setattr(launch, "ask", answers)
    return answers


@pytest.fixture
def host(tmp_path: Path) -> Host:
    new_host = Host(
        tmp_path,
        {"rounds": 2, "data": {**TABLE["data"], "unseen": 0.17}, "evaluation": {"every": 50}},
    )
    new_host.server = tmp_path / "f" / "server"
    return new_host


def submitted(host: Host, kind: str, **choices: Any) -> JobRecord:
    wanted = {"kind": kind, "seconds": 30.0, "patience": 5.0, **choices}
    return running.submit(host.server, job_for(host.path, "f", **wanted))


def begin(host: Host, record: JobRecord) -> None:
    """As if its app had begun, and been killed."""
    update_job(host.server, record.name, status="running")


def test_all_jobs_whose_apps_are_gone_are_taken_up(host: Host, flower: Flower) -> None:
    train, adapt = submitted(host, "train"), submitted(host, "adapt", clients=(5,))
    waiting = submitted(host, "adapt", clients=(4,))
    begin(host, train)
    begin(host, adapt)
    notes: list[str] = []
    running.take_up(host.server, notes.append)
    assert [words[0] for words in flower.asked] == ["run"] * 5
    by_name = {
        record.name: (record.status, record.flower_run) for record in unfinished_jobs(host.server)
    }
    assert by_name == {
        train.name: ("submitted", "4"),
        adapt.name: ("submitted", "5"),
        waiting.name: ("submitted", "3"),
    }
    assert len(notes) == 2
    running.take_up(host.server, notes.append)
    assert len(notes) == 2  # once


def test_a_job_that_somebody_works_on_is_left_to_him(host: Host, flower: Flower) -> None:
    train = submitted(host, "train")
    with working_on(host.server, train.name):
        assert (
            is_worked_on(host.server, train.name)
            and load_job(host.server, train.name).status == "running"
        )
        running.take_up(host.server, print)
        with (
            pytest.raises(UserError, match="another process works on"),
            working_on(host.server, train.name),
        ):
            pass
    assert flower.runs == 1 and load_job(host.server, train.name).status == "finished"


def test_jobs_that_are_over_are_not_taken_up(host: Host, flower: Flower) -> None:
    train, adapt = submitted(host, "train"), submitted(host, "adapt", clients=(5,))
    with pytest.raises(UserError, match="no space"), working_on(host.server, train.name):
        raise UserError("no space", "")
    with working_on(host.server, adapt.name):
        pass
    running.take_up(host.server, print)
    assert [(r.status, r.reason) for r in all_jobs(host.server)] == [
        ("failed", "no space"),
        ("finished", ""),
    ]
    assert flower.runs == 2


@pytest.mark.parametrize("said", ["finished:failed", "forgotten"])
def test_a_job_that_never_begins_is_started_again_and_then_fails_with_the_reason(
    said: str, host: Host, flower: Flower
) -> None:
    train = submitted(host, "train")
    flower.status = dict.fromkeys("12", said)
    running.check_submitted(host.server, print)
    running.check_submitted(host.server, print)
    assert load_job(host.server, train.name).flower_run == "3" and flower.runs == 3
    running.check_submitted(host.server, print)  # Flower says that it is running
    assert load_job(host.server, train.name).status == "submitted"
    flower.status["3"] = said
    running.check_submitted(host.server, print)
    failed = load_job(host.server, train.name)
    assert failed.status == "failed" and failed.reason.startswith(
        "the server's app did not begin 3 times"
    )
    with pytest.raises(UserError, match="did not begin 3 times"):
        check_job(host.server, train.name)


def test_a_superlink_that_is_starting_is_asked_again(
    host: Host, flower: Flower, monkeypatch: Any
) -> None:
    train = submitted(host, "train")
    begin(host, train)

    def away(*words: Any) -> None:
        raise UserError("flwr run failed: connection refused", "")

    with monkeypatch.context() as patch:
        patch.setattr(launch, "ask", away)
        running.take_up(host.server, print)
    assert load_job(host.server, train.name).status == "running"
    running.take_up(host.server, print)
    assert load_job(host.server, train.name).status == "submitted"


def test_a_run_is_trained_by_one_job_at_a_time(host: Host, flower: Flower) -> None:
    submitted(host, "train")
    with pytest.raises(UserError, match=r"is training .* already"):
        submitted(host, "train")


def other(host: Host, name: str) -> Host:
    return Host(host.base / name)


def test_stop_names_what_is_going_on_if_it_is_more_than_one_run(host: Host, flower: Flower) -> None:
    second = other(host, "second")
    second.server = host.server
    first, other_job = submitted(host, "train"), submitted(second, "train")
    with pytest.raises(UserError, match="several runs have jobs") as error:
        hosting.stop_jobs(host.server)
    assert str(host.path) in error.value.message and str(second.path) in error.value.message
    assert [record.name for record in hosting.stop_jobs(host.server, second.path)] == [
        other_job.name
    ]
    assert flower.asked[-1] == ("stop", other_job.flower_run)
    assert load_job(host.server, other_job.name).status == "stopped"
    assert [record.name for record in hosting.stop_jobs(host.server)] == [first.name]
    with pytest.raises(UserError, match="nothing to stop: no job of"):
        hosting.stop_jobs(host.server)


def test_a_stop_that_flower_refuses_changes_nothing(
    host: Host, flower: Flower, monkeypatch: Any
) -> None:
    train = submitted(host, "train")

    def refuses(*words: Any) -> None:
        raise UserError("flwr stop failed", "")

    monkeypatch.setattr(launch, "ask", refuses)
    with working_on(host.server, train.name), pytest.raises(UserError, match="flwr stop failed"):
        hosting.stop_jobs(host.server)
    assert load_job(host.server, train.name).status == "finished"  # its work went on to the end


def ending(error: BaseException) -> Any:
    def meddle(node: int, answer: Message) -> Message:
        if answer.metadata.message_type == "train" and answer.metadata.group_id == "1":
            raise error
        return answer

    return meddle


def test_an_app_that_is_told_to_end_leaves_its_job_to_be_taken_up_and_no_error(host: Host) -> None:
    with pytest.raises(SystemExit):  # Flower's way to end an app
        host.serve(ending(SystemExit(0)))
    assert load_run(host.path).status == "interrupted"
    assert host.rows("SELECT text FROM notes WHERE level = 'warning'") == []
    record = load_job(host.server, host.job)
    assert record.status == "running" and not is_worked_on(host.server, host.job)


@pytest.mark.parametrize(
    "error", [SystemExit(0), RuntimeError("the run is not running")], ids=["exit", "error"]
)
def test_a_run_that_is_stopped_is_interrupted_and_whoever_watches_is_told(
    error: BaseException, host: Host
) -> None:
    def meddle(node: int, answer: Message) -> Message:
        if answer.metadata.message_type == "train" and answer.metadata.group_id == "1":
            update_job(host.server, host.job, status="stopped")
        return ending(error)(node, answer)

    with pytest.raises(type(error)):
        host.serve(meddle)
    assert (
        load_run(host.path).status == "interrupted"
        and load_job(host.server, host.job).status == "stopped"
    )
    assert host.rows("SELECT text FROM notes WHERE level = 'warning'") == []
    with pytest.raises(Interrupted, match="the run was stopped"):
        check_job(host.server, host.job)


def test_new_clients_get_their_models_while_the_run_goes_on(host: Host) -> None:
    unseen, done = 0, list[str]()

    def adapt(node: int, answer: Message) -> Message:
        if answer.metadata.message_type == "train" and answer.metadata.group_id == "1" and not done:
            job = job_for(
                host.path, "f", kind="adapt", seconds=30.0, patience=5.0, clients=(unseen,)
            )
            done.append(add_job(host.server, job).name)
            folder = lambda context: host.base / "f" / f"client-{context.node_config['client']:03d}"
            grid = LocalGrid(
                client_app(lambda context: sides_at(folder(context), job.spec)), [unseen]
            )
            service.serve(grid, host.server, done[0])
        return answer

    host.serve(adapt)
    assert {record.name: record.status for record in all_jobs(host.server)} == {
        host.job: "finished",
        done[0]: "finished",
    }
    assert load_run(host.path).status == "finished" and load_run(host.path).rounds == 2
    notes = [row["text"] for row in host.rows("SELECT text FROM notes")]
    assert any(note.startswith(f"client {unseen} has its model") for note in notes)


@pytest.mark.parametrize("begins", [False, True])
def test_ctrl_c_while_a_job_is_handed_over_leaves_none_that_waits_for_ever(
    begins: bool, host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> None:
        if begins:
            (record,) = all_jobs(host.server)
            update_job(host.server, record.name, status="running")
        raise KeyboardInterrupt

    monkeypatch.setattr(launch, "ask", interrupted)
    with pytest.raises(KeyboardInterrupt):
        submitted(host, "train")
    (record,) = all_jobs(host.server)
    assert record.status == ("running" if begins else "stopped")


def test_ctrl_c_before_a_run_is_handed_over_says_how_to_go_on(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(running, "enrol", interrupted)
    with pytest.raises(Interrupted) as stopped:
        go_on(host.server, host.path, {}, lambda done: None, lambda note: None)
    assert stopped.value.message == "stopped while the run was handed to the server"
    assert stopped.value.fix == f"go on with: {command_for(host.server, host.path)}"


def test_ctrl_c_ends_the_waiting_for_models_and_not_the_job(
    host: Host, flower: Flower, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(seconds: float) -> None:
        raise KeyboardInterrupt

    begun = begin(host, submitted(host, "train"))
    assert begun is None
    monkeypatch.setattr(running, "enrol", lambda *_: None)
    monkeypatch.setattr(hosting.time, "sleep", interrupted)
    with RunFolder.open(host.path) as folder:
        monkeypatch.setattr(type(folder.store), "last_round", lambda self: 1)
    with pytest.raises(Interrupted) as stopped:
        hosting.adapt(host.server, host.path, [5], print, 9.0, 8.0)
    assert stopped.value.message == "no longer waiting; the server goes on giving models"
    assert f"federation stop {host.server} {host.path}" in stopped.value.fix
    assert [r.status for r in all_jobs(host.server) if r.job.kind == "adapt"] == ["submitted"]


def test_ctrl_c_while_a_job_is_being_stopped_does_not_bring_it_back(
    host: Host, flower: Flower, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    submitted(host, "train")
    monkeypatch.setattr(launch, "until", interrupted)
    said: list[str] = []
    with pytest.raises(Interrupted, match="no longer waiting; the job is being stopped"):
        hosting.stop_jobs(host.server, None, said.append)
    assert said == [f"stopping the run {host.path}"]
    assert [record.status for record in all_jobs(host.server)] == ["stopped"]


def test_status_shows_nodes_and_all_jobs_with_their_times(
    host: Host, flower: Flower, monkeypatch: pytest.MonkeyPatch
) -> None:
    train = submitted(host, "train")
    submitted(host, "adapt", clients=(5,))
    with pytest.raises(UserError), working_on(host.server, train.name):
        raise UserError("no space", "")
    again = submitted(host, "train")
    begin(host, again)
    online = [("ward-a", "online", "17")]
    monkeypatch.setattr(running, "list_nodes", lambda server_host, folder: online)
    before = datetime.now(UTC)
    _, node, *jobs = status_of(host.server)
    assert node == {"what": "node", "name": "ward-a", "status": "online", "id": "17"}
    assert [(row["what"], row["status"]) for row in jobs] == [
        ("train", "failed: no space; a later job went on with it"),
        ("adapt", "submitted, 0 rounds"),
        ("train", "running, 0 rounds"),
    ]
    assert [row["ended"] is None for row in jobs] == [False, True, True]
    for row in jobs:
        began = datetime.fromisoformat(str(row["began"]))
        assert timedelta(0) <= before - began < timedelta(minutes=1)
        assert str(row["when"]).removeprefix("since ").startswith(f"{began.astimezone():%Y-%m-%d}")


def test_status_of_a_server_that_is_not_running_shows_its_jobs(host: Host, flower: Flower) -> None:
    for _ in range(3):
        record = submitted(host, "train")
        with working_on(host.server, record.name):
            pass
    own, *jobs = status_of(host.server)
    start = f"start it: fedblocks federation server {host.server}"
    assert own["status"] == f"not running; {start}"
    assert [row["status"] for row in jobs] == [
        "finished; a later job went on with it",
        "finished; a later job went on with it",
        "finished, 0 rounds",
    ]
