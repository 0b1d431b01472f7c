"""What a server is told when something fails here: the kind of failure; names of files
and values stay in the log.
"""

from __future__ import annotations

from collections.abc import Iterator

from fedblocks.core.checks import OptionError
from fedblocks.core.errors import CheckpointError, DataError, NetError, RunFolderError, UserError
from fedblocks.core.full_disks import FULL
from fedblocks.flower.hosts.folders import SettingsError


def excuse_for(error: Exception) -> str:
    """Say what failed in words that name nothing of this machine."""
    if any(isinstance(e, OSError) and e.errno in FULL for e in _chain(error)):
        return "its disk is full"
    match error:
        case OptionError() | NetError():
            return error.message  # of options that the server chose
        case RunFolderError():
            return "it cannot write to its disk; its log says why"
        case CheckpointError():
            return "what it kept cannot be read; its log says why"
        case DataError():
            return "its data cannot be used; its log says why"
        case SettingsError():
            return "its settings cannot be used; its log says why"
        case UserError():
            return "it cannot do what it was asked; its log says why"
        case _:
            return f"it failed ({type(error).__name__}); its log says why"


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__
