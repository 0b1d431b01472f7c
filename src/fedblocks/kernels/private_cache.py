"""Files that outlive a process: compiled kernels, and which of them compute what they should.

Code is loaded from here, so nobody else may write to the folder; one that others may write to is
not used. A file that was cut short or changed is as good as missing.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from hashlib import sha256
from pathlib import Path
from threading import get_ident

FOLDER = "FEDBLOCKS_KERNELS"  # environment variable: where the files are; empty: nowhere
_DIGEST = 32  # bytes of the digest before the content
_OTHERS = 0o022  # may write


def cache_path() -> Path | None:
    """Where the files are."""
    named = os.environ.get(FOLDER)
    if named == "" or not hasattr(os, "getuid"):  # a system without owners of files
        return None
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(named or f"{base}/fedblocks/kernels").expanduser()


def recall(name: str) -> bytes | None:
    """What was kept under this name, or nothing."""
    with suppress(OSError), _folder() as folder:
        file = os.open(name, os.O_RDONLY | os.O_NOFOLLOW, dir_fd=folder)
        with open(file, "rb") as stream:
            digest, content = stream.read(_DIGEST), stream.read()
        if sha256(content).digest() == digest:
            return content
    return None


def keep(name: str, content: bytes) -> None:
    """Keep this for later processes, if there is a place for it; readers see all or nothing."""
    draft = f".{name}-{os.getpid()}-{get_ident()}"
    with suppress(OSError), _folder() as folder:
        file = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600, dir_fd=folder)
        try:
            with open(file, "wb") as stream:
                stream.write(sha256(content).digest() + content)
            os.replace(draft, name, src_dir_fd=folder, dst_dir_fd=folder)
        except OSError:
            os.unlink(draft, dir_fd=folder)


@contextmanager
def _folder() -> Iterator[int]:
    """The open folder, made if it is missing: ours, and nobody else's to write to."""
    path = cache_path()
    if path is None:
        raise FileNotFoundError
    path.parent.mkdir(parents=True, exist_ok=True)
    path.mkdir(mode=0o700, exist_ok=True)
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        about = os.fstat(folder)
        if about.st_uid != os.getuid() or stat.S_IMODE(about.st_mode) & _OTHERS:
            raise PermissionError
        yield folder
    finally:
        os.close(folder)
