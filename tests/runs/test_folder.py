"""A run folder is made whole, opened with clear errors, and written by one process at a time."""

import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from fedblocks.core.errors import RunFolderError
from fedblocks.runs.storage import checkpoint, folder, lock
from fedblocks.runs.storage.environment import environment
from fedblocks.runs.storage.folder import REAL, RunFolder
from fedblocks.runs.storage.record import RoundRecord

CONFIG = {
    "seed": 3,
    "method": {"name": "pfedmb", "lr": 0.1, "branches": 3},
    "data": {"parts": [0.8, 0.2]},
}
ENVIRONMENT = {"python": "3.11", "threads": 1}


def contents(path):
    return sorted(os.listdir(path))


@pytest.fixture
def run(tmp_path):
    with RunFolder.create(tmp_path / "deep" / "run", CONFIG, ENVIRONMENT) as run:
        yield run


@pytest.fixture
def readable():
    """A folder that any user can reach and nobody but root can write; pytest's own are
    closed to others.
    """
    with tempfile.TemporaryDirectory() as path:
        os.chmod(path, 0o555)
        yield Path(path)
        os.chmod(path, 0o755)


@pytest.fixture
def ordinary_user():
    """Root may write anywhere; an ordinary user may not."""
    if os.geteuid() == 0:
        os.seteuid(65534)
        yield
        os.seteuid(0)
    else:
        yield


def test_a_run_comes_back_with_everything(run):
    run.store.record_round(RoundRecord(1, 2.0, 5))
    checkpoint.save(run.checkpoints, 1, {"x": 1.5}, {}, changed=None)
    with RunFolder.open(run.path) as again:
        assert again.config == CONFIG and again.environment == ENVIRONMENT
        assert again.store.last_round() == 1 and checkpoint.load(again.checkpoints).shared == {
            "x": 1.5
        }
    assert not [name for name in contents(run.path) if name.endswith(".tmp")]


def test_the_status_is_kept(run):
    assert run.status == "running"
    with RunFolder.open(run.path) as reader:
        assert reader.status == "running"
        run.set_status("finished")
        assert reader.status == "finished"


def test_an_existing_run_is_refused_and_unharmed(run):
    before = contents(run.path)
    with pytest.raises(RunFolderError, match="already holds a run") as caught:
        RunFolder.create(run.path, {"seed": 4}, {})
    assert f"fedblocks resume {run.path}" in caught.value.fix and "--out" in caught.value.fix
    assert contents(run.path) == before and RunFolder.open(run.path).config == CONFIG


def test_an_existing_run_of_a_federation_is_continued_by_its_own_command(run):
    run.store.set_meta(REAL, "run-1")
    for local, command in (
        (False, f"`fedblocks federation run {run.path} --server FOLDER`"),
        (True, f"`fedblocks federation local {run.path}`"),
    ):
        if local:
            (run.path / "federation" / "server").mkdir(parents=True)
        with pytest.raises(RunFolderError, match="already holds a run") as caught:
            RunFolder.create(run.path, {"seed": 4}, {})
        assert f"continue it with {command}, or" in caught.value.fix


def test_a_folder_with_other_things_is_refused_and_unharmed(tmp_path):
    (tmp_path / "thesis.tex").touch()
    with pytest.raises(RunFolderError, match="is not empty and not a run"):
        RunFolder.create(tmp_path, CONFIG, {})
    assert contents(tmp_path) == ["thesis.tex"]


def test_an_empty_folder_is_used(tmp_path):
    RunFolder.create(tmp_path, CONFIG, {}).close()
    assert contents(tmp_path) == ["config.toml", "env.json", "run.lock", "run.sqlite"]


def test_a_configuration_that_is_no_toml_leaves_nothing_behind(tmp_path):
    with pytest.raises(TypeError):
        RunFolder.create(tmp_path / "run", {"seed": None}, {})
    assert contents(tmp_path) == []


@pytest.mark.parametrize("step", ["env.json", "run.sqlite", "config.toml"])
def test_a_run_that_was_killed_while_being_made_can_be_started_again(tmp_path, monkeypatch, step):
    class Killed(BaseException):
        pass

    def write(path, text, whole=folder.write_atomically):
        if path.name == step:
            path.with_name(f".{step}.tmp").write_text(text[:9])
            raise Killed
        whole(path, text)

    def create(path, whole=folder.RunStore.create):
        store = whole(path)
        if path.name == step:
            raise Killed
        return store

    monkeypatch.setattr(folder, "write_atomically", write)
    monkeypatch.setattr(folder.RunStore, "create", create)
    with pytest.raises(Killed):
        RunFolder.create(tmp_path, CONFIG, {})
    monkeypatch.undo()
    with pytest.raises(RunFolderError):
        RunFolder.open(tmp_path)
    RunFolder.create(tmp_path, CONFIG, {}).close()
    assert RunFolder.open(tmp_path).config == CONFIG


def test_what_is_no_run_is_named_as_such(tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").touch()
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign" / "config.toml").touch()
    expected = {
        "absent": "does not exist",
        "empty": "is empty",
        "file": "is not a folder",
        "foreign": "no run.sqlite",
    }
    for name, message in expected.items():
        with pytest.raises(RunFolderError, match=message) as caught:
            RunFolder.open(tmp_path / name)
        assert caught.value.fix and caught.value.exit_code == 4


def test_a_damaged_configuration_is_named(run):
    (run.path / "config.toml").write_text("seed = = 3")
    with pytest.raises(RunFolderError, match=r"cannot read .*config\.toml"):
        RunFolder.open(run.path)


def test_a_path_below_a_file_cannot_be_written(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(RunFolderError, match="cannot write the run folder"):
        RunFolder.create(tmp_path / "file" / "run", CONFIG, {})


def test_an_unwritable_folder_is_refused(readable, ordinary_user):
    for path in (readable, readable / "run"):
        with pytest.raises(
            RunFolderError, match=f"cannot write the run folder {path}: Permission denied"
        ):
            RunFolder.create(path, CONFIG, {})


def test_a_run_that_may_only_be_read_can_be_read_and_not_claimed(readable):
    os.chmod(readable, 0o755)
    with RunFolder.create(readable / "run", CONFIG, {}) as run:
        run.store.record_round(RoundRecord(1, 2.0, 5))
    script = """if True:
        import os, sys
        from pathlib import Path
        from fedblocks.core.errors import RunFolderError
        from fedblocks.runs.storage.folder import RunFolder
        os.chmod(sys.argv[1], 0o555)
        if os.getuid() == 0:
            os.setuid(65534)
        run = RunFolder.open(Path(sys.argv[1]))
        print(run.store.last_round())
        try:
            run.claim()
        except RunFolderError as error:
            print(error.message)
    """
    result = subprocess.run(
        [sys.executable, "-c", script, run.path], capture_output=True, text=True, timeout=60
    )
    os.chmod(run.path, 0o755)
    refused = f"cannot write the run folder {run.path}: Permission denied"
    assert result.stdout.splitlines() == ["1", refused], result.stderr


def test_two_writers_in_one_process_are_refused(run):
    with RunFolder.open(run.path) as other:
        with pytest.raises(RunFolderError, match=f"is being written by process {os.getpid()}"):
            other.claim()
        run.close()
        other.claim()


WRITER = """
import sys, time
from pathlib import Path
from fedblocks.runs.storage.folder import REAL, RunFolder
run = RunFolder.open(Path(sys.argv[1]))
run.claim()
run.set_status("running")
print("claimed", flush=True)
time.sleep(600)
"""


def test_a_second_process_is_refused_until_the_first_is_dead(run):
    run.close()
    writer = subprocess.Popen(
        [sys.executable, "-c", WRITER, run.path], stdout=subprocess.PIPE, text=True
    )
    try:
        assert writer.stdout.readline() == "claimed\n"
        with RunFolder.open(run.path) as second:
            with pytest.raises(RunFolderError, match=f"is being written by process {writer.pid}"):
                second.claim()
            assert second.status == "running"
            writer.send_signal(signal.SIGKILL)
            writer.wait()
            assert second.status == "interrupted"  # the dead cannot say so themselves
            second.claim()
            assert second.status == "running"
    finally:
        writer.kill()


FORKING = """
import os, sys, time
from fedblocks.runs.storage.lock import take_lock
from pathlib import Path
take_lock(Path(sys.argv[1]))
if not os.fork():
    print("claimed", flush=True)
    time.sleep(float(sys.argv[2]))
    os._exit(0)
time.sleep(600)
"""


@pytest.mark.parametrize("patient", [True, False])
def test_processes_of_a_dead_writer_are_waited_for(run, patient, monkeypatch):
    """They hold its lock until they notice that it is gone: half a second here."""
    run.close()
    monkeypatch.setattr(lock, "ORPHANS", 30.0 if patient else 0.0)
    command = [sys.executable, "-c", FORKING, run.path, "0.5" if patient else "5"]
    writer = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert writer.stdout.readline() == "claimed\n"
    writer.kill()
    writer.wait()
    with RunFolder.open(run.path) as second:
        if not patient:
            with pytest.raises(RunFolderError, match="is being written by another process"):
                second.claim()
            return
        second.claim()
        assert second.status == "running"


def test_a_lock_left_by_a_process_whose_id_is_used_again_does_not_count(run):
    run.close()
    (run.path / "run.lock").write_text(f"{os.getpid()} 1\n")  # this id, but another start
    with RunFolder.open(run.path) as again:
        assert again.status == "interrupted"
        again.claim()


def test_the_environment_is_json_without_names_of_host_or_user(monkeypatch):
    machine = platform.uname()
    monkeypatch.setattr(platform, "uname", lambda: machine._replace(node="enchantress"))
    monkeypatch.setenv("HOME", "/home/lovelace")
    monkeypatch.setenv("USER", "lovelace")
    monkeypatch.setattr(
        sys, "argv", ["/home/lovelace/.venv/bin/fedblocks", "run", "--out=/home/lovelace/runs/1"]
    )
    actual = environment()
    assert actual["command"] == ["fedblocks", "run", "--out=~/runs/1"]
    for path, name in (
        ("/lib/fedblocks/__main__.py", "fedblocks"),
        ("/my/__main__.py", "__main__.py"),
    ):
        monkeypatch.setattr(sys, "argv", [path, "run"])
        assert environment()["command"] == [name, "run"]
    assert (
        actual["python"] == platform.python_version()
        and actual["versions"]["torch"]
        and actual["threads"] >= 1
    )
    assert not [
        name for name in ("enchantress", "lovelace", platform.node()) if name in json.dumps(actual)
    ]


def git(*arguments):
    """Call git in the current folder, which becomes a checkout of the tests' own."""
    name = ["-c", "user.name=a", "-c", "user.email=a@b.c"]
    return subprocess.run(
        ["git", *name, *arguments], check=True, capture_output=True, text=True
    ).stdout.strip()


@pytest.fixture
def new_checkout(tmp_path, monkeypatch):
    """The current folder, with one commit."""
    root = tmp_path / "checkout"
    root.mkdir()
    monkeypatch.chdir(root)
    (root / "file").write_text("1")
    for command in (["init", "-q"], ["add", "file"], ["commit", "-q", "-m", "first"]):
        git(*command)
    return root


def test_the_environment_names_the_commit_of_a_checkout(new_checkout, monkeypatch):
    commit = git("rev-parse", "HEAD")
    assert len(commit) == 40 and environment()["git"] == commit
    (new_checkout / "below").mkdir()
    monkeypatch.chdir(new_checkout / "below")
    assert environment()["git"] == commit
    git("pack-refs", "--all")
    assert environment()["git"] == commit
    git("checkout", "-q", "--detach")
    assert environment()["git"] == commit


def test_the_environment_of_a_folder_without_commits_names_none(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / ".git").mkdir()
    assert environment()["git"] is None
    os.mkfifo(tmp_path / ".git" / "HEAD")  # a reader would wait for ever
    assert environment()["git"] is None


def test_the_settings_of_a_strangers_checkout_are_not_obeyed(new_checkout):
    program, trace = new_checkout / "program", new_checkout / "trace"
    program.write_text(f"#!/bin/sh\ntouch {trace}\n")
    program.chmod(0o755)
    git("config", "core.fsmonitor", str(program))
    git("status")
    assert trace.exists()  # git obeys
    trace.unlink()
    assert environment()["git"] and not trace.exists()


@pytest.mark.parametrize("text", ["{", None])
def test_an_environment_that_cannot_be_read_is_an_error_that_says_so(run, text):
    (run.path / "env.json").unlink()
    if text is not None:
        (run.path / "env.json").write_text(text)
    with pytest.raises(RunFolderError, match=r"cannot read .*env\.json"):
        run.environment  # noqa: B018


def failed(path: Path, **facts: str) -> None:
    """A run that failed, with what it may have written before its first round."""
    with RunFolder.create(path, {"seed": 4}, {}) as begun:
        begun.store.write_facts({"status": "failed", **facts})
        (path / "constants.safetensors").write_text("of another net")
        (path / "code.json").write_text("[]")
        (path / "frozen").mkdir()
        (path / "frozen" / "block.safetensors").touch()


def test_a_run_that_failed_before_its_first_round_makes_way_for_the_next(tmp_path):
    failed(tmp_path / "run")
    with RunFolder.create(tmp_path / "run", CONFIG, ENVIRONMENT) as again:
        assert again.config == CONFIG and again.status == "running"
    left = ["config.toml", "env.json", "run.lock", "run.sqlite"]
    assert contents(tmp_path / "run") == left


def test_a_run_that_holds_a_round_or_something_else_makes_no_way(tmp_path):
    def with_a_round(path: Path) -> None:
        failed(path)
        with RunFolder.open(path) as begun:
            begun.claim()
            begun.store.record_round(RoundRecord(1, 2.0, 5))

    def with_a_note_of_ones_own(path: Path) -> None:
        failed(path)
        (path / "why-it-failed.md").touch()

    def with_checkpoints(path: Path) -> None:
        failed(path)
        (path / "checkpoints").mkdir()

    def interrupted(path: Path) -> None:
        failed(path, status="interrupted")

    def of_a_real_federation(path: Path) -> None:
        failed(path, **{"federation-run": "hospitals"})

    def damaged(path: Path) -> None:
        failed(path)
        (path / "run.sqlite").write_bytes(b"rubbish" * 100)

    for make in (
        *(with_a_round, with_a_note_of_ones_own, with_checkpoints, interrupted),
        *(of_a_real_federation, damaged),
    ):
        path = tmp_path / make.__name__
        make(path)
        before = contents(path)
        with pytest.raises(RunFolderError, match="already holds a run"):
            RunFolder.create(path, CONFIG, ENVIRONMENT)
        assert contents(path) == before, make.__name__
