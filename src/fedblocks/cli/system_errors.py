"""What the system refuses, in the words of the commands: no right, no room, a name that cannot
be.
"""

from __future__ import annotations

import errno
from pathlib import Path

from fedblocks.core.errors import UserError
from fedblocks.core.full_disks import FULL, write_error

_FIXES = {
    errno.EACCES: "use a folder of your own, or run this as the user that it belongs to",
    errno.EPERM: "use a folder of your own, or run this as the user that it belongs to",
    errno.EROFS: "use a folder on another disk: this one can only be read",
    errno.ENOTDIR: "name a folder: a part of this path is a file",
    errno.EISDIR: "name a file: this is a folder",
    errno.ENAMETOOLONG: "choose a shorter name",
    errno.ELOOP: "choose another path: links of this one lead in a circle",
}


def explain(error: OSError) -> UserError | None:
    """The error that a user can put right, if it is of such a kind and names a path; a full disk
    is one without.
    """
    if error.errno in FULL:
        return write_error(Path(error.filename or "a file"), error)
    if error.filename is None or error.errno not in _FIXES:
        return None
    return UserError(f"cannot use {error.filename}: {error.strerror}", _FIXES[error.errno])
