"""What hosts do with the processes they start, without starting any."""

from __future__ import annotations

import os
import re
import tomllib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from fedblocks import read_config
from fedblocks.core.errors import Interrupted, RunFolderError, UserError
from fedblocks.flower import simulation
from fedblocks.flower.client import host as client_host
from fedblocks.flower.hosts import federation, launch, running, server_host, server_watch
from fedblocks.flower.hosts.folders import ClientHost, ServerHost
from fedblocks.flower.keys.private_files import hold_server_folder
from fedblocks.runs.storage.folder import RunFolder
from fedblocks.runs.storage.record import Note, RoundRecord

TERMS = {"seconds": 9.0, "patience": 8.0}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """The folder of a run that waits for its federation."""
    config = read_config("digits-fedavg", ["data.clients=5", "rounds=2"])
    return federation.new_run(config, tmp_path / "run.1", ["a note"])


@pytest.fixture
def server(path: Path) -> Path:
    federation.deal_out(path, path / "federation", 2, 4321, insecure=True)
    return path / "federation" / "server"


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch, said: list[str]) -> list[Any]:
    """Processes and jobs that would have been started."""
    calls: list[Any] = []

    class Group:
        def __init__(self, logs: Path, variables: dict[str, str]) -> None:
            calls.append(("group", logs, variables))

        def __enter__(self) -> Any:
            return self

        def __exit__(self, *_: object) -> None:
            calls.append("ended")

        def start(self, name: str, command: list[str], **more: str) -> None:
            calls.append((name, command))

        def check(self) -> None:
            """All is well."""

    def submit(folder: Path, job: Any) -> Any:
        calls.append(("job", folder, job))
        return SimpleNamespace(name="job-1", is_over=False, status="new", reason="")

    for module in (federation, simulation, server_host, client_host):
        monkeypatch.setattr(module, "ProcessGroup", Group)
    monkeypatch.setattr(running, "submit", submit)
    monkeypatch.setattr(running, "enrol", lambda host, folder, tell: tell(f"enrol {folder.name}"))
    return calls


def test_a_new_run_waits_with_all_that_is_known_beforehand(path: Path) -> None:
    with RunFolder.open(path) as folder:
        assert folder.status == "interrupted" and folder.config["rounds"] == 2
        assert [row["text"] for row in folder.store.rows("SELECT text FROM notes")] == ["a note"]
        name = folder.store.meta(federation.REAL)
        assert name is not None and re.fullmatch("run-[0-9a-f]{12}-run-1", name)
        hash_ = folder.store.meta("federation")
        assert hash_ is not None and len(hash_) == 64
    job = federation.job_for(path, "here", kind="train", **TERMS)
    assert (job.folder, job.seconds, job.patience, job.kind) == (str(path), 9.0, 8.0, "train")
    assert job.spec.federation == "here" and job.spec.run == name
    with pytest.raises(UserError, match=r"\[faults\] is for simulated runs"):
        federation.new_run(read_config("digits-fedavg", ["faults.drop=0.5"]), path / "x", [])


def test_clients_are_dealt_out_in_turn_with_their_numbers_of_examples(
    path: Path, server: Path
) -> None:
    host = ServerHost.read(server)
    assert [tuple(host.clients[name]) for name in sorted(host.clients)] == [(0, 2, 4), (1, 3)]
    assert host.port == 4321 and host.insecure
    data = federation.shape_of(federation.config_of(RunFolder.open(path)))
    sizes = data.train.sizes.tolist()
    wanted = [sizes[0] + sizes[2] + sizes[4], sizes[1] + sizes[3]]
    assert [host.examples[name] for name in sorted(host.examples)] == wanted
    again = federation.deal_out(path, server.parent, 7, 1, insecure=True)  # it goes on as it was
    assert again == sorted(host.clients)


def test_the_paths_of_a_configuration_stay_those_that_it_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(0)
    users = np.repeat(["a", "b"], 20)
    np.savez(tmp_path / "d.npz", x=rng.normal(size=(40, 3)), y=np.arange(40) % 2, user=users)
    monkeypatch.chdir(tmp_path)
    change = 'data={name = "npz", partition = {name = "by_user"}, options = {path = "d.npz"}}'
    path = federation.new_run(read_config("digits-fedavg", [change]), tmp_path / "run", [])
    federation.deal_out(path, path / "federation", 2, 4321, insecure=True)
    client = ClientHost.read(path / "federation" / "client-000")
    assert client.data["options"]["path"] == str(tmp_path / "d.npz")


@pytest.mark.parametrize("kind", ["local", "simulate"])
def test_a_federation_on_this_machine_is_not_started_twice_in_one_folder(
    kind: str, path: Path, server: Path, started: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(simulation, "need_ray", lambda: None)
    (server / "flower.db").write_text("of the first")
    play = {
        "local": lambda: federation.local(path, 2, TERMS, print, print),
        "simulate": lambda: simulation.simulate(
            path, 2, TERMS, print, print, cpus=1, gpus=0.0, address=None
        ),
    }
    with (
        hold_server_folder(server),  # by the first
        pytest.raises(UserError, match=rf"\(process {os.getpid()}\) already works in"),
    ):
        play[kind]()
    assert started == [] and (server / "flower.db").read_text() == "of the first"


def test_a_local_federation_starts_a_server_its_nodes_and_a_job(
    path: Path, started: list[Any], said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    federation.deal_out(path, path / "federation", 2, 4321, insecure=True)
    (path / "federation" / "server" / "flower.db-wal").write_text("of an earlier time")
    tended: list[Any] = []
    monkeypatch.setattr(running, "start_server", lambda g, folder, tell: ServerHost.read(folder))
    monkeypatch.setattr(running, "look_after", lambda g, folder, tell: tended.append(folder))
    monkeypatch.setattr(federation, "check_job", lambda folder, name: tended.append(name))
    monkeypatch.setattr(federation, "start_client", lambda g, folder, name: tended.append(name))
    monkeypatch.setattr(
        federation, "watch", lambda path, on_round, on_note, tend, command, after: (tend(), path)[1]
    )
    note = lambda note: said.append(note.text)
    ended = federation.local(path, 2, TERMS, lambda done: None, note)
    server = path / "federation" / "server"
    assert ended == path and not list(server.glob("flower.db*"))
    group, job, last = started
    assert group[1] == path / "federation" / "logs" and last == "ended"
    assert group[2][launch.SERVER] == str(server)
    assert job[1] == server and job[2].folder == str(path) and job[2].seconds == 9.0
    assert tended == [*sorted(ServerHost.read(server).clients), server, "job-1"]
    assert said == ["starting 2 nodes, and the app that goes through the rounds"]


def test_a_run_on_a_server_is_watched_until_one_stops_watching(
    path: Path, server: Path, started: list[Any], said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    looked: list[Any] = []
    monkeypatch.setattr(federation, "check_job", lambda folder, name: looked.append((folder, name)))
    monkeypatch.setattr(
        federation, "watch", lambda path, on_round, on_note, tend, command, after: (tend(), path)[1]
    )
    note = lambda note: said.append(note.text)
    assert federation.go_on(server, path, TERMS, lambda done: None, note) == path
    assert said == ["enrol server"] and looked == [(server, "job-1")]

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(federation, "watch", stop)
    with pytest.raises(Interrupted, match="the run goes on") as caught:
        federation.go_on(server, path, TERMS, lambda done: None, note)
    assert f"federation status {server}" in caught.value.fix


def test_whoever_watches_a_run_is_told_once_that_the_server_is_gone_and_is_back(
    server: Path, said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = iter([True, False, True, False, False, False, True, True])
    monkeypatch.setattr(launch, "healthy", lambda host, folder: next(answers))
    monkeypatch.setattr(server_watch, "LOOK", 0.0)
    watch = server_watch.ServerWatch(ServerHost.read(server), server, said.append)
    for _ in range(8):
        watch.look()
    start = f"fedblocks federation server {server}"
    assert said == [  # at the second of three looks in a row without an answer
        f"the server does not answer; the run goes on when it is started: {start}",
        "the server answers again",
    ]


@pytest.mark.parametrize("ending", ["finished", "failed"])
def test_new_clients_are_told_of_their_models_only(
    ending: str,
    path: Path,
    server: Path,
    started: list[Any],
    said: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(UserError, match="no key is enrolled for client 99") as stranger:
        server_host.adapt(server, path, [3, 99], said.append, 9.0, 8.0)
    assert stranger.value.fix.endswith(f"enrol {server} NAME.pub --client 99") and said == []
    with pytest.raises(RunFolderError, match="has no rounds yet"):
        server_host.adapt(server, path, [3], said.append, 9.0, 8.0)
    with RunFolder.open(path) as folder:
        folder.claim()
        folder.store.record_round(RoundRecord(1, 1.0, 5, notes=[Note("client 3 was there before")]))
    looks: list[float] = []

    def load(folder: Path, name: str) -> Any:
        assert (folder, name) == (server, "job-1")
        if len(looks) == 1:
            with RunFolder.open(path) as run:
                run.claim()
                for text in ("client 3 has its model", "client 31 has its model", "other"):
                    run.store.note(text)
        over = len(looks) == 2
        record = {"name": name, "is_over": over, "status": ending, "reason": "no room"}
        return SimpleNamespace(**record, fix="", exit_code=RunFolderError.exit_code)

    monkeypatch.setattr(server_host, "load_job", load)
    monkeypatch.setattr(server_host.time, "sleep", looks.append)
    said.clear()
    if ending == "finished":
        server_host.adapt(server, path, [3], said.append, 9.0, 8.0)
    else:
        with pytest.raises(RunFolderError, match="no models were given: no room"):
            server_host.adapt(server, path, [3], said.append, 9.0, 8.0)
    waiting = "asked for models for client 3; waiting until it is there, 8 s at most"
    assert (
        said == ["enrol server", waiting, "client 3 has its model"]
        and looks == [server_host.TEND] * 2
    )
    (_, folder, job) = started[-1]
    assert (folder, job.kind, list(job.clients)) == (server, "adapt", [3])
    assert (job.seconds, job.patience) == (9.0, 8.0)


@pytest.mark.parametrize(
    ("unfinished", "end"),
    [
        (0, "stopping"),
        (1, "stopping; 1 unfinished job will go on when it is started again"),
        (2, "stopping; 2 unfinished jobs will go on when it is started again"),
    ],
)
def test_a_server_says_who_may_connect_and_that_it_stops(
    unfinished: int,
    end: str,
    server: Path,
    started: list[Any],
    said: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rounds: list[int] = []

    def look_after(group: Any, folder: Path, tell: Any) -> None:
        tell("news")  # the second time it is no news
        rounds.append(1)
        if len(rounds) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(running, "start_server", lambda g, folder, tell: ServerHost.read(folder))
    monkeypatch.setattr(running, "look_after", look_after)
    monkeypatch.setattr(server_host.time, "sleep", lambda seconds: None)
    monkeypatch.setattr(server_host, "unfinished_jobs", lambda folder: [None] * unfinished)
    server_host.host_server(server, said.append)
    assert said == [
        "ready: 2 machines with a key may connect to 127.0.0.1:4321",
        "news",
        end,
    ]
    assert started[0][1:] == (
        server / "logs",
        {**launch.environment(server), launch.SERVER: str(server)},
    )


def test_a_machine_says_where_its_server_is_and_that_it_stops(
    server: Path, started: list[Any], said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def watch(group: Any, folder: Path, tell: Any) -> None:
        raise KeyboardInterrupt

    node = server.parent / sorted(ServerHost.read(server).clients)[0]
    monkeypatch.setattr(client_host, "watch_client", watch)
    client_host.host_client(node, said.append)
    assert said[0].startswith("starting; the server is ") and said[0].endswith(":4321")
    assert said[1:] == ["stopping"]
    group, (_, command), _ = started
    assert group[1] == node / "logs" and command[-1] == str(node)


def test_a_simulation_starts_a_superlink_without_a_gateway_and_hands_it_the_job(
    path: Path, started: list[Any], said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []

    def ask(folder: Path, *words: str) -> dict[str, str]:
        asked.append((folder, *words))
        return {"run-id": "17"}

    monkeypatch.setattr(simulation, "need_ray", lambda: None)
    monkeypatch.setattr(simulation, "watch", lambda path, *others: path)
    monkeypatch.setattr(simulation.launch, "healthy", lambda host, folder: True)
    monkeypatch.setattr(simulation.launch, "ask", ask)
    note = lambda note: said.append(note.text)
    options = {"cpus": 2, "gpus": 0.25, "address": "there"}
    ended = simulation.simulate(path, 2, TERMS, lambda done: None, note, **options)  # type: ignore[arg-type]
    assert ended == path and said == ["starting Ray and 2 nodes"]
    group, (first, command), (second, _), _ = started
    assert (first, command[-2:], second) == (
        "superlink",
        ["--insecure", "--simulation"],
        "superexec",
    )
    assert group[2][simulation.RAY_ADDRESS] == "there"
    server = path / "federation" / "server"
    ((folder, word, app, option, settings),) = asked
    assert (folder, word, option) == (server, "run", "--federation-config")
    told = dict(pair.split("=") for pair in settings.split())
    assert (told["num-supernodes"], told["client-resources-num-cpus"]) == ("2", "2")
    assert told["client-resources-num-gpus"] == "0.25"
    record = federation.load_job(server, Path(app).name)
    assert (record.flower_run, record.job.folder) == ("17", str(path))
    assert (record.job.seconds, record.job.patience) == (9.0, 8.0)
    flower = tomllib.loads((Path(app) / "pyproject.toml").read_text())["tool"]["flwr"]["app"]
    assert flower["config"] == {"job": record.name, "server": str(server)}
    assert flower["components"]["clientapp"] == "fedblocks.flower.ray_app:client_app"


def test_a_simulation_without_ray_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(simulation, "find_spec", lambda name: None)
    with pytest.raises(UserError, match="need Ray") as caught:
        simulation.need_ray()
    assert "fedblocks[flower-simulation]" in caught.value.fix
