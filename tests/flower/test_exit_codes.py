"""A command that waits for a run on the server ends with the exit code of what ended the run."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'fedblocks[flower]'")

from fedblocks.config.model import Config
from fedblocks.core.errors import CheckpointError, DataError, RunFolderError, UserError
from fedblocks.flower.hosts.federation import check_job, job_for, new_run
from fedblocks.flower.hosts.setup import make_server_folder
from fedblocks.flower.server.jobs import add_job, command_for, working_on
from fedblocks.flower.server.service import _ending
from fedblocks.flower.server.watching import watch
from fedblocks.runs.run import refuse_real
from fedblocks.runs.storage.folder import RunFolder

CAUSES = [
    RunFolderError("cannot write round 3: No space left on device", "free some space"),
    CheckpointError("no checkpoint can be read"),
    DataError("the data are of another shape"),
    UserError("1 of 2 clients connected"),
]
each_cause = pytest.mark.parametrize("cause", CAUSES, ids=lambda cause: type(cause).__name__)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """The folder of a run that was never played."""
    table = {
        "rounds": 1,
        "data": {"name": "digits", "clients": 2},
        "net": {"name": "mlp", "hidden": [4]},
        "method": {"name": "fedavg"},
    }
    return new_run(Config.of(table), tmp_path / "run", [])


@each_cause
def test_whoever_watches_a_run_fails_as_the_run_did(cause: UserError, path: Path) -> None:
    with (
        RunFolder.open(path) as folder,
        pytest.raises(UserError),
        _ending(folder, lambda: False),
    ):
        raise cause
    with pytest.raises(type(cause), match=cause.message) as caught:
        watch(path, lambda done: None, lambda note: None, lambda: None, "fedblocks federation ...")
    assert caught.value.exit_code == cause.exit_code
    assert caught.value.fix == f"{cause.fix or 'correct that'}; then: fedblocks federation ..."


@each_cause
def test_a_job_that_cannot_write_to_its_run_folder_says_how_it_failed(
    cause: UserError, path: Path, tmp_path: Path
) -> None:
    job = add_job(tmp_path, job_for(path, "f", kind="train", seconds=1.0, patience=1.0)).name
    with pytest.raises(UserError), working_on(tmp_path, job):
        raise cause
    with pytest.raises(type(cause)) as caught:
        check_job(tmp_path, job)
    assert (caught.value.exit_code, caught.value.message) == (cause.exit_code, cause.message)
    assert caught.value.fix == (cause.fix or f"see {tmp_path / 'logs' / 'superexec.log'}")


def test_a_run_is_continued_by_the_command_that_began_it(path: Path, tmp_path: Path) -> None:
    inside = path / "federation"
    make_server_folder(inside, "127.0.0.1")
    make_server_folder(tmp_path, "127.0.0.1")
    elsewhere = tmp_path / "server"
    assert command_for(inside / "server", path) == f"fedblocks federation local {path}"
    run = f"fedblocks federation run {path} --server {elsewhere}"
    assert command_for(elsewhere, path) == run
    with RunFolder.open(path) as folder, pytest.raises(RunFolderError) as caught:
        refuse_real(folder)
    assert caught.value.fix == f"go on with: fedblocks federation local {path}"
