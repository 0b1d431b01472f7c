"""Data sets in files on disk: which files each needs, where they are looked for, and whether they
are whole.

A loader is made of four pieces:

    IMAGES = File("train-images-idx3-ubyte.gz")
    FILES = FileSet("mnist", home="https://...", sources=(FileSource("idx", (IMAGES, ...)),))

    def decode(local: LocalFiles) -> Arrays:  # runs once; local.source.form: which form is there
        # contents.py: {name: bytes}, also out of tar and zip, gz unpacked
        raw = contents(local, "train-*")
        return {"x": ..., "y": ...}

    def mnist() -> DataPool:
        # cache.py: what was decoded, memory-mapped and read-only
        arrays = cached_arrays(FILES, decode)
        return DataPool(...)

    # listed in sets/__init__.py
    SETS = {"mnist": StoredSet("mnist", mnist, 10, "images", "one line", FILES)}

`FEDBLOCKS_DATA` names one folder or several (separated as in PATH); the files of a set stand in its
subfolder, or in a folder inside that as archives unpack to, with or without .gz. A source that is
one single file (an archive, a compact file) may also stand right in FEDBLOCKS_DATA. Sources are
tried in order, and the first that is all there is used.
"""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from fedblocks.core.errors import DataError
from fedblocks.data.pools import DataSet

DATA = "FEDBLOCKS_DATA"  # environment variable: where the data sets are
CHUNK = 1 << 20  # bytes read at a time


@dataclass(frozen=True)
class File:
    """One official file."""

    # as the official site or archive spells it, folders with /; may have * for a family of files
    name: str
    size: int | None = None  # bytes, where known
    sha256: str = ""  # where known
    url: str = ""  # where the official site has it; empty: it cannot be fetched as one file


@dataclass(frozen=True)
class FileSource:
    """One form in which a data set is published; all of its files are needed."""

    # short name of the format, such as binary, idx, compact; a packed and an unpacked source may
    # share it
    form: str
    files: tuple[File, ...]


@dataclass(frozen=True)
class FileSet:
    """The files of a data set in all the forms that can be read."""

    folder: str  # subfolder of FEDBLOCKS_DATA
    home: str  # the official page, for people
    sources: tuple[FileSource, ...]


@dataclass(frozen=True)
class LocalFiles:
    """The files of one source, as they lie on this disk."""

    files: FileSet
    source: FileSource
    paths: tuple[Path, ...]  # in the order of the source's files, families sorted by name


@dataclass(frozen=True)
class StoredSet(DataSet):
    """A data set by name that needs files."""

    files: FileSet


def roots() -> tuple[Path, ...]:
    """The folders of FEDBLOCKS_DATA, or fedblocks-data in the home folder."""
    named = [Path(part).expanduser() for part in os.environ.get(DATA, "").split(os.pathsep) if part]
    return tuple(named) or (Path.home() / "fedblocks-data",)


def find(files: FileSet) -> LocalFiles:
    """The first source whose files are all there, or DataError with what to put where."""
    local = look(files)
    if local is None:
        places = " or ".join(str(root / files.folder) for root in roots())
        raise DataError(
            f'the files of the data set "{files.folder}" are not in {places}', wanted(files)
        )
    return local


def look(files: FileSet) -> LocalFiles | None:
    """The first source whose files are all there, if any."""
    for source in files.sources:
        for root in roots():
            for folder in folders(root, files, source):
                paths = [matches(folder, file.name) for file in source.files]
                if all(paths):
                    return LocalFiles(
                        files, source, tuple(path for family in paths for path in family)
                    )
    return None


def folders(root: Path, files: FileSet, source: FileSource) -> list[Path]:
    """Where a source may stand: one single file has an unmistakable name, also in a
    folder of many data sets.
    """
    alone = len(source.files) == 1 and not set("*/") & set(source.files[0].name)
    return [root / files.folder, root] if alone else [root / files.folder]


def matches(folder: Path, name: str) -> list[Path]:
    """The files of this name or family: in a folder or one below it, packed as .gz or not."""
    spellings = dict.fromkeys((name, name.removesuffix(".gz")))
    for pattern in (*spellings, *(f"*/{spelling}" for spelling in spellings)):
        paths = sorted(path for path in folder.glob(pattern) if path.is_file())
        if paths:
            return paths if "*" in name else paths[:1]
    return []


def wanted(files: FileSet) -> str:
    """What to put where, for people."""
    folder = roots()[0] / files.folder
    ways = []
    for source in files.sources:
        names = ", ".join(
            f.name + (f" ({f.size:,} bytes)" if f.size is not None else "") for f in source.files
        )
        ways.append(f"    {source.form}: {names}")
    unset = (
        "" if os.environ.get(DATA) else f" (or set {DATA} to the folder that you keep data sets in)"
    )
    return (
        f"put the files of one of these lines into {folder}{unset}; see {files.home}\n"
        + "\n".join(ways)
    )


def verify(local: LocalFiles) -> None:
    """Refuse files that are not the official ones, as far as sizes and hashes of this
    spelling are known.
    """
    known = {Path(file.name).name: file for file in local.source.files}
    for path in local.paths:
        if path.name in known:
            verify_file(path, known[path.name], local.files.home)


def verify_file(path: Path, file: File, home: str) -> None:
    """Refuse a file of another size or content than the official one."""
    fix = f"remove it and get {file.name} again; see {home}"
    size = path.stat().st_size
    if file.size is not None and size != file.size:
        what = "cut short" if size < file.size else "too long"
        raise DataError(f"{path} is {what}: {size:,} of {file.size:,} bytes", fix)
    if file.sha256:
        with open(path, "rb") as stream:
            digest = sha256_of(stream)
        if digest != file.sha256:
            raise DataError(
                f"{path} is damaged or another version: SHA-256 {digest}, expected {file.sha256}",
                fix,
            )


def sha256_of(stream: BinaryIO) -> str:
    """The hash of all that is left in a stream."""
    digest = hashlib.sha256()
    while chunk := stream.read(CHUNK):
        digest.update(chunk)
    return digest.hexdigest()
