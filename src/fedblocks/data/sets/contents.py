"""The bytes of a data set's files, whether they lie in a folder, in a tar or in a zip."""

from __future__ import annotations

import gzip
import lzma
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path

from fedblocks.core.errors import DataError
from fedblocks.data.sets.files import LocalFiles

TARS = (".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz")
DAMAGE = (OSError, EOFError, zlib.error, lzma.LZMAError, tarfile.TarError, zipfile.BadZipFile)


def contents(local: LocalFiles, *patterns: str) -> dict[str, bytes]:
    """Files whose name (without folders and .gz) matches a pattern, by that name,
    unpacked; one pass over archives.
    """
    held = {name: data for path in local.paths for name, data in unpack(path, patterns)}
    for pattern in patterns:
        if not any(fnmatch(name, pattern) for name in held):
            where = ", ".join(str(path) for path in local.paths[:3])
            fix = f"get the official files again; see {local.files.home}"
            raise DataError(f"there is no {pattern} in {where}", fix)
    return held


def unpack(path: Path, patterns: tuple[str, ...]) -> Iterator[tuple[str, bytes]]:
    """What a file holds: its own bytes, or the members of an archive."""
    try:
        if path.name.endswith(TARS):
            yield from in_tar(path, patterns)
        elif path.suffix == ".zip":
            yield from in_zip(path, patterns)
        elif is_wanted(path.name, patterns):
            yield plain(path.name), ungz(path.name, path.read_bytes())
    except DAMAGE as error:
        raise DataError(
            f"{path} cannot be read: {error}", "it is damaged or cut short: get it again"
        ) from error


def in_tar(path: Path, patterns: tuple[str, ...]) -> Iterator[tuple[str, bytes]]:
    """Members of a tar, in one pass."""
    with tarfile.open(path, "r|*") as archive:
        for member in archive:
            if not member.isfile() or not is_wanted(member.name, patterns):
                continue
            stream = archive.extractfile(member)
            if stream is not None:
                yield plain(member.name), ungz(member.name, stream.read())


def in_zip(path: Path, patterns: tuple[str, ...]) -> Iterator[tuple[str, bytes]]:
    """Members of a zip; copies that a Mac adds are left out."""
    with zipfile.ZipFile(path) as archive:
        for name in archive.namelist():
            is_file = not name.startswith("__MACOSX/") and not name.endswith("/")
            if is_file and is_wanted(name, patterns):
                yield plain(name), ungz(name, archive.read(name))


def plain(name: str) -> str:
    """The name without folders and .gz."""
    return name.rpartition("/")[2].removesuffix(".gz")


def is_wanted(name: str, patterns: tuple[str, ...]) -> bool:
    """Whether a file is asked for."""
    return any(fnmatch(plain(name), pattern) for pattern in patterns)


def ungz(name: str, data: bytes) -> bytes:
    """The bytes, unpacked where the name says that they are packed."""
    return gzip.decompress(data) if name.endswith(".gz") else data
