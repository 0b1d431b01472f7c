"""Whether a run is still of the data and the code that it was started with."""

from __future__ import annotations

from pathlib import Path

from fedblocks.config.model import Config
from fedblocks.core.errors import DataError
from fedblocks.runs.build import Prepared, prepare
from fedblocks.runs.clients import clients_from
from fedblocks.runs.sampling import TRACE
from fedblocks.runs.storage.behaviour import check_behaviour
from fedblocks.runs.storage.constants import restore_constants
from fedblocks.runs.storage.folder import RunFolder
from fedblocks.runs.storage.frozen import check_frozen


def check_taken_over(path: Path, config: Config) -> None:
    """Refuse a finished run that other data or other code gave than those of today."""
    with RunFolder.open(path) as folder:
        check_same_run(folder, prepare(on_the_cpu(config)))


def on_the_cpu(config: Config) -> Config:
    """The same configuration on the CPU, one client after another."""
    return config.model_copy(update={"device": "cpu", "engine": "sequential"})


def check_same_run(folder: RunFolder, prepared: Prepared) -> None:
    """Refuse to go on with other data, or with another net or method."""
    check_same_data(folder, prepared)
    check_same_code(folder, prepared)


def check_same_code(folder: RunFolder, prepared: Prepared) -> None:
    """Refuse another net or method; the net gets the constants that it had."""
    restore_constants(folder.path, prepared.experiment.methods)
    check_frozen(folder, prepared.experiment)
    check_behaviour(folder, prepared.experiment)


def check_same_data(folder: RunFolder, prepared: Prepared) -> None:
    """Refuse to go on with other data, or with another trace of who is there."""
    check_same_federation(folder, prepared)
    trace = folder.store.meta(TRACE)
    if trace is not None and trace != prepared.sampling.content_hash:
        fix = "restore the trace that the run was started with, or start a new run"
        raise DataError("the trace of who is there differs from that of the run", fix)


def check_same_federation(folder: RunFolder, prepared: Prepared) -> None:
    """Refuse other data than those that the run was started with."""
    recorded = folder.store.meta("federation")
    if recorded is not None and recorded != prepared.hash:
        fix = "restore the data that the run was started with, or start a new run"
        raise DataError("the data differ from those that the run was started with", fix)
    _check_same_names(folder, prepared)


def _check_same_names(folder: RunFolder, prepared: Prepared) -> None:
    """Refuse other names of the clients, under which the record would list what is not theirs."""
    names = prepared.experiment.data.names
    for client, known in clients_from(folder.store.meta("clients")).items():
        before, now = known["name"], str(names[client]) if client < len(names) else ""
        if before != now:
            raise DataError(
                f'client {client} was called "{before}" when the run was started, and is "{now}"',
                "give the clients the names that they had, or start a new run",
            )
