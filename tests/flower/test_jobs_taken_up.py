"""Jobs whose apps are gone or never began: which are started again, and what is told."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr")

from fedblocks.core.errors import UserError
from fedblocks.flower.hosts import launch, running
from fedblocks.flower.server.jobs import JobRecord, load_job

from .stored_jobs import stored


@pytest.fixture
def again(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """Jobs that are submitted again, with what is told."""
    own: list[tuple[str, str]] = []

    def submit(server: Path, record: JobRecord, text: str, tell: Any) -> None:
        own.append((record.name, text))

    monkeypatch.setattr(running, "_submit_again", submit)
    return own


@pytest.mark.parametrize(
    ("kind", "status", "worked_on", "what"),
    [
        ("train", "running", False, "going on from the last round that it stored"),
        ("adapt", "running", False, "starting it again"),
        ("train", "running", True, None),
        ("train", "submitted", False, None),
        ("train", "stopped", False, None),
    ],
)
def test_a_job_whose_app_had_begun_and_is_gone_goes_on(
    kind: str,
    status: str,
    worked_on: bool,
    what: str | None,
    again: list[tuple[str, str]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    record = stored(tmp_path, kind=kind, status=status)
    asked: list[Any] = []
    monkeypatch.setattr(running, "is_worked_on", lambda *who: asked.append(who) or worked_on)
    running.take_up(tmp_path, lambda text: None)
    name = record.name
    assert again == ([] if what is None else [(name, f"the app of {name} is gone; {what}")])
    assert asked == ([(tmp_path, name)] if status == "running" else [])


@pytest.mark.parametrize(
    ("said", "submissions", "comes"),
    [
        ("finished:failed", 1, "again"), ("unknown", 2, "again"), ("finished", 3, "failed"),
        ("running", 9, None), ("pending", 1, None), ("unreachable", 1, None),
    ],
)  # fmt: skip
def test_a_job_that_did_not_begin_is_started_three_times(
    said: str,
    submissions: int,
    comes: str | None,
    again: list[tuple[str, str]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert running.MOST == 3
    record = stored(tmp_path, submissions=submissions, flower_run="7")
    stored(tmp_path, submissions=submissions)  # Flower has no number for it yet
    stored(tmp_path, submissions=submissions, flower_run="8", status="running")
    asked: list[Any] = []
    monkeypatch.setattr(running, "flower_status", lambda *what: asked.append(what) or said)
    told: list[str] = []
    running.check_submitted(tmp_path, told.append)
    assert asked == [(tmp_path, "7")]
    text = f"{record.name} did not begin ({said}); starting it again"
    assert again == ([(record.name, text)] if comes == "again" else [])
    after = load_job(tmp_path, record.name)
    if comes == "failed":
        reason = "the server's app did not begin 3 times: finished"
        assert (after.status, after.reason) == ("failed", reason)
        assert told == [f"{record.name} failed: {reason}"]
    else:
        assert after.status == "submitted" and told == []


def test_a_job_that_began_while_flower_was_asked_is_left_alone(
    again: list[tuple[str, str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = stored(tmp_path, submissions=1, flower_run="7")

    def status(server: Path, number: str) -> str:
        running.update_job(server, record.name, status="running")
        return "unknown"

    monkeypatch.setattr(running, "flower_status", status)
    running.check_submitted(tmp_path, lambda text: None)
    assert again == [] and load_job(tmp_path, record.name).status == "running"


@pytest.mark.parametrize(
    ("there", "error", "told"),
    [(True, None, ["text"]), (False, None, []),
     (True, UserError("away", "wait"), ["NAME cannot be started yet: away"])],
)  # fmt: skip
def test_a_job_whose_run_is_gone_fails_and_one_that_cannot_start_waits(
    there: bool,
    error: UserError | None,
    told: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder = tmp_path / "run"
    if there:
        folder.mkdir()
    record = stored(tmp_path / "server", folder, status="running")
    started: list[Any] = []

    def start(*what: Any) -> None:
        started.append(what)
        if error is not None:
            raise error

    monkeypatch.setattr(running, "_start", start)
    said: list[str] = []
    running._submit_again(tmp_path / "server", record, "text", said.append)
    assert said == [text.replace("NAME", record.name) for text in told]
    after = load_job(tmp_path / "server", record.name)
    if there:
        assert started == [(tmp_path / "server", record)] and after == record
    else:
        assert started == [] and (after.status, after.reason) == ("failed", f"{folder} is gone")


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ({"runs": [{"status": "finished", "status-details": "why"}]}, "finished why"),
        ({"runs": [{"status": "running"}, {"status": "other"}]}, "running"),
        ({"runs": []}, "unknown"), ({}, "unknown"), (UserError("away", ""), "unreachable"),
    ],
)  # fmt: skip
def test_flowers_word_on_a_run_is_one_of_few(
    answer: Any, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []

    def ask(*words: Any) -> Any:
        asked.append(words)
        if isinstance(answer, UserError):
            raise answer
        return answer

    monkeypatch.setattr(launch, "ask", ask)
    assert running.flower_status(Path("server"), "7") == said
    assert asked == [(Path("server"), "list", "--run-id", "7")]
