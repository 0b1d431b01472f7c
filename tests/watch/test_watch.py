"""Watching: who may see the page, what it says of every kind of folder, and the view on
a terminal.
"""

from __future__ import annotations

import json
import sys
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from fedblocks import read_config
from fedblocks.cli import main
from fedblocks.cli.watch import wait
from fedblocks.core.errors import RunFolderError, UserError
from fedblocks.runs.federations import federation_of
from fedblocks.runs.storage.folder import RunFolder
from fedblocks.runs.storage.record import ClientMetric, Part, RoundRecord, Traffic
from fedblocks.watch.look import Watched, has_begun
from fedblocks.watch.terminal import lines, view_of


def record(round: int) -> RoundRecord:
    parts: tuple[Part, ...] = ("validation", "test")
    metrics = [
        ClientMetric(part, "personal", c, float(round + c), 10.0, 1.0)
        for part in parts
        for c in range(2)
    ]
    return RoundRecord(round, 0.5, 2, metrics, [Traffic(0, "model", "up", 1_000_000)])


def begun(path: Path, rounds: int = 0) -> RunFolder:
    """A run that this process writes, with some rounds on record."""
    config = read_config("digits-pfedmb", ["rounds=4", "data.clients=4"])
    folder = RunFolder.create(path, config.resolved(), {"python": "3"})
    for round in range(1, rounds + 1):
        folder.store.record_round(record(round))
    return folder


def test_a_folder_is_read_anew_only_when_it_has_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedblocks.watch.look.REST", 0)
    with begun(tmp_path / "r", 1) as folder:
        data = federation_of(read_config("digits-pfedmb", ["data.clients=4"]))
        folder.store.set_meta("federation", data.hash())
        watched = Watched(folder.path)
        first = watched.look()
        assert watched.look() is first and first.status.startswith("running: round 1 of 4")
        folder.store.record_round(record(2))
        second = watched.look()
        assert second.version != first.version and second.status.startswith("running: round 2 of 4")
        assert second.story.federation is first.story.federation  # data are made once
        fresh = json.loads(second.as_json())
        assert fresh["charts"][0]["id"] == "curve-round" and "Leaderboard" in fresh["html"]


def test_a_run_whose_process_is_gone_counts_as_interrupted(tmp_path: Path) -> None:
    begun(tmp_path / "r", 1).close()
    assert Watched(tmp_path / "r").look().status.startswith("interrupted: round 1 of 4")


def test_folders_that_are_no_runs_are_refused_before_anything_is_served(tmp_path: Path) -> None:
    pytest.importorskip(
        "starlette", reason="watching needs starlette: pip install 'fedblocks[dashboard]'"
    )
    pytest.importorskip("plotly", reason="the page needs plotly: pip install 'fedblocks[report]'")
    from fedblocks.watch.server import Live

    (tmp_path / "empty").mkdir()
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign" / "letter.txt").write_text("dear")
    for name, said in {
        "missing": "does not exist",
        "empty": "is empty",
        "foreign": "is not a run",
    }.items():
        with pytest.raises(RunFolderError, match=said):
            Live(tmp_path / name)
        with pytest.raises(RunFolderError, match=said):
            view_of(tmp_path / name)


def test_a_page_comes_with_strict_headers_and_only_by_its_own_address(tmp_path: Path) -> None:
    pytest.importorskip(
        "starlette", reason="watching needs starlette: pip install 'fedblocks[dashboard]'"
    )
    pytest.importorskip("plotly", reason="the page needs plotly: pip install 'fedblocks[report]'")
    from fedblocks.watch.server import Live

    begun(tmp_path / "r", 1).close()
    live = Live(tmp_path / "r")
    server = live.server()
    thread = Thread(target=server.run, kwargs={"sockets": [live.socket]}, daemon=True)
    thread.start()
    actual, text = asked(live.port, "GET", f"/{live.token}/")
    assert actual.status == 200 and "curve-round" in text
    rules = actual.headers["content-security-policy"]
    assert rules.startswith("default-src 'none'") and "frame-ancestors 'none'" in rules
    assert (
        actual.headers["x-frame-options"] == "DENY"
        and actual.headers["cache-control"] == "no-store"
    )
    wrong = [
        ("GET", "/guess/"),
        ("POST", f"/{live.token}/"),
        ("GET", "/"),
        ("GET", f"/{live.token}"),
    ]
    assert [asked(live.port, *words)[0].status for words in wrong] == [404] * 4
    assert asked(live.port, "GET", f"/{live.token}/", host="evil.example")[0].status == 404
    server.should_exit = True
    thread.join(10)


def asked(port: int, verb: str, path: str, host: str = "") -> tuple[HTTPResponse, str]:
    """The answer to one question."""
    line = HTTPConnection("127.0.0.1", port, timeout=20)
    line.request(verb, path, headers={"Host": host or f"127.0.0.1:{port}"})
    actual = line.getresponse()
    return actual, actual.read().decode()


def test_a_missing_extra_and_a_taken_port_are_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fedblocks.watch import server

    taken = server._listen(0)
    with pytest.raises(UserError, match="cannot use port"):
        server._listen(taken.getsockname()[1])
    taken.close()
    monkeypatch.setattr("fedblocks.core.requirements.find_spec", lambda name: None)
    with pytest.raises(UserError) as error:
        server.Live(tmp_path)
    assert "starlette" in error.value.message and "fedblocks[dashboard]" in error.value.fix


def test_the_terminal_shows_a_run_until_it_ends(tmp_path: Path) -> None:
    folder = begun(tmp_path / "r", 1)
    shown: list[str] = []

    def later(_: float) -> None:  # what happens between two looks
        folder.store.record_round(record(len(shown) + 1))
        if len(shown) == 2:
            folder.set_status("finished")

    for line in lines(tmp_path / "r", later):
        shown.append(line)
    folder.close()
    assert [line.split("  ")[:2] for line in shown] == [
        ["status running", "rounds 1 of 4"],
        ["status running", "rounds 2 of 4"],
        ["status finished", "rounds 3 of 4"],
    ]
    assert (
        "accuracy 35.0% (validation, mean over clients)" in shown[2] and "sent 3.00 MB" in shown[2]
    )


def test_the_terminal_tells_how_long_it_takes_yet(tmp_path: Path) -> None:
    with begun(tmp_path / "r", 1) as folder:
        rows: dict[str, Any] = view_of(folder.path).rows
    assert rows["left, about"] == "2 s"  # three rounds of half a second
    with begun(tmp_path / "new") as folder:
        assert view_of(folder.path).rows["accuracy"] == "not evaluated yet"


def harmed(path: Path, harm: str) -> None:
    path.rename(path.with_name("elsewhere"))
    if harm == "replaced":
        begun(path, 1).close()


@pytest.mark.parametrize("harm", ["moved", "replaced"])
def test_a_folder_that_is_moved_while_it_is_watched_is_not_one_that_never_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, harm: str
) -> None:
    monkeypatch.setattr("fedblocks.watch.look.REST", 0)
    with begun(tmp_path / "r", 1) as folder:
        watched = Watched(folder.path)
        watched.look()
        shown = lines(folder.path, lambda seconds: harmed(folder.path, harm))
        assert "rounds 1 of 4" in next(shown)
        for look in (lambda: next(shown), watched.look):
            with pytest.raises(RunFolderError, match=f"r was {harm} .*while it was watched") as all:
                look()
            assert "move it back: its run ends in the next round" in all.value.fix


def test_the_page_of_a_folder_that_is_gone_says_so(tmp_path: Path) -> None:
    from starlette.testclient import TestClient

    from fedblocks.watch.server import Live

    with begun(tmp_path / "r", 1) as folder:
        live = Live(folder.path)
        client = TestClient(live.app(), base_url=f"http://127.0.0.1:{live.port}")
        assert client.get(f"/{live.token}/").status_code == 200
        folder.path.rename(tmp_path / "elsewhere")
        answer = client.get(f"/{live.token}/")
        live.socket.close()
    assert answer.status_code == 503 and "was moved or deleted while it was w" in answer.text


def test_the_command_writes_lines_where_there_is_no_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    begun(tmp_path / "r", 2).close()
    with pytest.raises(SystemExit) as ended:
        main(["watch", str(tmp_path / "r"), "--terminal"])
    assert ended.value.code == 0
    assert capsys.readouterr().out.startswith("status interrupted  rounds 2 of 4")


def test_nothing_of_the_web_is_imported_for_the_terminal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "starlette", None)
    begun(tmp_path / "r", 1).close()
    assert list(lines(tmp_path / "r"))


def test_watching_waits_for_a_run_that_begins_later_and_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, steps = tmp_path / "later", iter(["nothing", "an empty folder", "half a run", "a run"])

    def sleep(seconds: float) -> None:
        match next(steps):
            case "an empty folder":
                path.mkdir()
            case "half a run":
                (path / "run.lock").touch()
            case "a run":
                begun(path, 1).close()

    wait(path, sleep)
    assert list(steps) == [] and view_of(path).result.rounds == 1
    shown = capsys.readouterr().out
    assert shown == f"no run has begun in {path} yet; waiting for it (Ctrl-C ends)\n"


def test_watching_does_not_wait_for_what_can_never_be_a_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign" / "thesis.tex").touch()
    with pytest.raises(SystemExit) as ended:
        main(["watch", str(tmp_path / "foreign"), "--terminal"])
    assert ended.value.code == 4 and "is not a run" in capsys.readouterr().err


def test_a_comparison_has_begun_with_its_first_run(tmp_path: Path) -> None:
    (tmp_path / "compare.toml").touch()
    assert not has_begun(tmp_path)
    begun(tmp_path / "runs" / "fedavg-0").close()
    assert has_begun(tmp_path)
