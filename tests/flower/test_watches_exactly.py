"""What is watched while a federation runs, and what a server shows of itself."""

from __future__ import annotations

from contextlib import nullcontext
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("flwr")

from fedblocks.core.errors import RunFolderError, UserError
from fedblocks.flower.hosts import federation, key_watch, launch, running, server_watch, status
from fedblocks.flower.hosts.expiry import ExpiredError
from fedblocks.flower.hosts.folders import ClientHost, ServerHost, SettingsError, address_of
from fedblocks.flower.keys.shared_keys import SharedKey

from .stored_jobs import stored

HOST = ServerHost(federation="f", address="127.0.0.1", port=11, inner_port=12, insecure=True,
                  bind="127.0.0.1", clients={"ann": (0,)})  # fmt: skip


def test_a_federation_and_its_job_are_looked_after_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[Any] = []
    monkeypatch.setattr(running, "look_after", lambda *what: done.append(what))
    monkeypatch.setattr(federation, "check_job", lambda *what: done.append(what))
    processes: Any = "processes"
    federation._tend(processes, Path("server"), "train-1", print)
    assert done == [("processes", Path("server"), print), (Path("server"), "train-1")]


def test_keys_that_are_shared_are_told_in_order_and_again_if_it_happens_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = SharedKey(2, ["1.1.1.1", "2.2.2.2"], 0.0)
    shared = dict.fromkeys(["dan", "bob", "eve", "ann", "cid"], key)
    monkeypatch.setattr(key_watch, "read_shared", lambda folder: shared)
    told: list[str] = []
    watch = key_watch.KeyWatch(tmp_path, told.append)
    names = lambda: [text.split()[3] for text in told]
    watch._tell_shared()
    watch._tell_shared()
    assert names() == ["ann", "bob", "cid", "dan", "eve"]
    assert told[0] == f"warning: {key.sentence('ann', tmp_path)}"
    bob = {"bob": shared.pop("bob")}
    watch._tell_shared()
    shared |= bob
    watch._tell_shared()
    assert names()[5:] == ["bob"]


@pytest.mark.parametrize("insecure", [True, False])
def test_warnings_of_certificates_are_told_where_there_are_some(
    insecure: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    HOST.model_copy(update={"insecure": insecure}).write(tmp_path)
    asked: list[Any] = []
    from fedblocks.flower.keys import certificate_checks as checks

    monkeypatch.setattr(checks, "check_server", lambda *what: asked.append(what) or ["a", "b"])
    told: list[str] = []
    key_watch.check_server(tmp_path, told.append)
    assert told == ([] if insecure else ["a", "b"])
    assert asked == ([] if insecure else [(tmp_path, "127.0.0.1")])


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (None, "the server does not answer; the run goes on when it is started: START"),
        (UserError("odd"), "the server does not answer; the run goes on when it is started: START"),
        (ExpiredError("expired", "renew"), "expired; the run goes on then; renew"),
    ],
)
def test_a_server_that_is_away_is_told_after_two_looks_and_when_it_is_back(
    error: Exception | None, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, looks = [0.0], list[float]()
    answers = iter([False, True, False, False, False, True, True])

    def healthy(host: Any, folder: Any) -> bool:
        looks.append(now[0])
        return next(answers)

    def check(folder: Path) -> None:
        if error is not None:
            raise error

    monkeypatch.setattr(server_watch, "time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr(launch, "healthy", healthy)
    monkeypatch.setattr(running, "check_running", check)
    told: list[str] = []
    watch = server_watch.ServerWatch(HOST, Path("/f"), told.append)
    for moment in range(0, 61, 5):
        now[0] = float(moment)
        watch.look()
    assert looks == [0.0, 10.0, 20.0, 30.0, 40.0, 50.0, 60.0]
    start = "fedblocks federation server /f"
    assert told == [said.replace("START", start), "the server answers again"]


@pytest.mark.parametrize(
    ("answer", "standing"),
    [
        ([("ann", "online", "7")], "127.0.0.1:11"),
        (running.NotRunningError("away", "start it"), "not running; start it"),
        (ExpiredError("expired", "renew"), "running, but expired; renew"),
    ],
)
def test_a_server_shows_whether_it_runs_and_who_is_there(
    answer: Any, standing: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    HOST.write(tmp_path)

    def nodes(host: Any, folder: Path) -> Any:
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(running, "list_nodes", nodes)
    shared = {"ann": SharedKey(2, ["1.1.1.1"], 0.0), "gone": SharedKey(2, [], 0.0)}
    monkeypatch.setattr(status, "read_shared", lambda folder: shared)
    rows = status.status_of(tmp_path)
    assert rows[0] == {"what": "federation", "name": "f", "status": standing}
    warning = {"what": "warning", "name": "ann", "status": shared["ann"].sentence("ann", tmp_path)}
    here = {"what": "node", "name": "ann", "status": "online", "id": "7"}
    assert rows[1:] == ([] if isinstance(answer, Exception) else [here, warning])


def test_jobs_are_shown_with_their_rounds_their_times_and_what_went_on_with_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    began = datetime(2026, 3, 1, 10, 30, tzinfo=UTC)
    same, later = began.replace(hour=11), began.replace(day=2)

    def opened(path: Path) -> Any:
        if path.name != "run":
            raise RunFolderError("odd")
        return nullcontext(SimpleNamespace(store=SimpleNamespace(last_round=lambda: 1)))

    monkeypatch.setattr(status.RunFolder, "open", opened)
    run = tmp_path / "run"
    (tmp_path / "broken").mkdir()
    records = [
        stored(tmp_path, run, status="running", began=began),
        stored(tmp_path, run, status="failed", reason="odd", began=began, ended=later),
        stored(tmp_path, run, kind="adapt", status="finished", began=began, ended=same),
        stored(tmp_path, tmp_path / "broken", status="stopped", began=None),
        stored(tmp_path, tmp_path / "gone", status="stopped", began=began, ended=same),
    ]
    rows = status._jobs(records)
    # those that are over first, each in the order in which it came
    assert [row["status"] for row in rows] == [
        "failed: odd; a later job went on with it", "finished, 1 round",
        "stopped, its record cannot be read", "stopped, its folder is gone", "running, 1 round",
    ]  # fmt: skip
    assert [row["what"] for row in rows] == ["train", "adapt", "train", "train", "train"]
    here = lambda moment: f"{moment.astimezone():%Y-%m-%d %H:%M}"
    hour = f"{same.astimezone():%H:%M}"
    assert [row["when"] for row in rows] == [
        f"{here(began)} to {here(later)}", f"{here(began)} to {hour}", None,
        f"{here(began)} to {hour}", f"since {here(began)}",
    ]  # fmt: skip
    assert rows[0]["began"] == began.isoformat() and rows[0]["ended"] == later.isoformat()
    assert rows[2]["began"] is None and rows[4]["ended"] is None


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("odd = 1", "odd: "), ('device = "gpu"', "device: "), ("clients = []", "clients: "),
        ("clients = [1, 0]", "settings: clients: numbers from 0, each once and in order"),
        ("clients = [-1]", "settings: clients: numbers from 0, each once and in order"),
    ],
)  # fmt: skip
def test_a_wrong_setting_is_named_with_its_file_and_place(
    line: str, said: str, tmp_path: Path
) -> None:
    table = {"federation": '"f"', "server": '"a:1"', "clients": "[0, 8]"}
    name, _, value = line.partition(" = ")
    text = "\n".join(f"{k} = {v}" for k, v in {**table, name: value}.items())
    (tmp_path / "client.toml").write_text(f"{text}\n[data]\n")
    with pytest.raises(SettingsError) as wrong:
        ClientHost.read(tmp_path)
    assert wrong.value.message.startswith(f"{tmp_path / 'client.toml'}: {said}")


@pytest.mark.parametrize(
    ("text", "default", "address"),
    [
        ("a:1", None, ("a", 1)), ("a:65535", None, ("a", 65535)), ("a", 7, ("a", 7)),
        ("a:9", 7, ("a", 9)), ("a:0", 7, None), ("a:65536", None, None), ("a", None, None),
        ("a:", 7, None), ("a:x", 7, None), ("-a:1", None, None), ("a b:1", None, None),
        ("a:1:2", None, None), ("a:\u0661", None, None), ("x" * 253, 7, ("x" * 253, 7)),
        ("x" * 254, 7, None), ("a.b-c.d:5", None, ("a.b-c.d", 5)), ("a..b:1", None, None),
    ],
)  # fmt: skip
def test_an_address_is_a_machine_and_a_port(
    text: str, default: int | None, address: tuple[str, int] | None
) -> None:
    if address is not None:
        assert address_of(text, default) == address
    else:
        with pytest.raises(UserError):
            address_of(text, default)
