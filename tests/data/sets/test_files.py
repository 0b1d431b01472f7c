"""Files of data sets: found, checked, decoded once, fetched only when asked, and never
half-written.
"""

from __future__ import annotations

import gzip
import hashlib
import http.server
import io
import os
import tarfile
import threading
import zipfile
from pathlib import Path

import numpy as np
import pytest

from fedblocks.core.errors import DataError
from fedblocks.data.sets import cache
from fedblocks.data.sets.cache import cached_arrays
from fedblocks.data.sets.contents import contents
from fedblocks.data.sets.download import download
from fedblocks.data.sets.files import File, FileSet, FileSource, LocalFiles, find, look, verify

TEXT = b"0123456789"
SHA = hashlib.sha256(TEXT).hexdigest()
TWO = FileSet(
    "pair", "https://example.org", (FileSource("plain", (File("a.bin", 10, SHA), File("b.bin"))),)
)
ONE = FileSet("pair", "https://example.org", (FileSource("packed", (File("all.tar.gz"),)),))


def put(folder: Path, **files: bytes) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / f"{name}.bin").write_bytes(text)


def numbers(found: LocalFiles) -> dict[str, np.ndarray]:
    return {"x": np.frombuffer(contents(found, "a.bin")["a.bin"], np.uint8)}


def test_missing_files_are_named_with_their_place_and_page(data_folder: Path) -> None:
    with pytest.raises(DataError) as caught:
        find(TWO)
    assert str(data_folder / "pair") in caught.value.message
    assert all(
        text in caught.value.fix
        for text in ("a.bin (10 bytes), b.bin", "https://example.org", "plain:")
    )


def test_without_the_variable_a_message_says_that_it_can_be_set(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("FEDBLOCKS_DATA", raising=False)
    monkeypatch.setenv("HOME", "/nowhere")
    with pytest.raises(DataError, match="set FEDBLOCKS_DATA"):
        find(TWO)


def test_a_source_needs_all_of_its_files(data_folder: Path) -> None:
    put(data_folder / "pair", a=TEXT)
    assert look(TWO) is None
    put(data_folder / "pair", b=b"")
    assert find(TWO).paths == (data_folder / "pair" / "a.bin", data_folder / "pair" / "b.bin")


def test_files_are_found_in_the_second_folder_and_in_the_folder_of_an_archive(
    data_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(
        "FEDBLOCKS_DATA", os.pathsep.join([str(data_folder / "first"), str(data_folder)])
    )
    put(data_folder / "pair" / "unpacked", a=TEXT, b=b"")
    assert find(TWO).paths[0] == data_folder / "pair" / "unpacked" / "a.bin"


def test_a_single_file_may_stand_right_in_the_folder_but_not_one_of_several(
    data_folder: Path,
) -> None:
    put(data_folder, a=TEXT, b=b"")
    (data_folder / "all.tar.gz").write_bytes(b"")
    assert look(TWO) is None and find(ONE).paths == (data_folder / "all.tar.gz",)


@pytest.mark.parametrize(
    ("text", "message"),
    [(TEXT[:4], "cut short: 4 of 10"), (TEXT * 2, "too long"), (b"x" * 10, f"expected {SHA}")],
)
def test_a_file_that_is_not_the_official_one_is_refused_and_nothing_is_kept(
    data_folder: Path, text: bytes, message: str
) -> None:
    put(data_folder / "pair", a=text, b=b"")
    with pytest.raises(DataError, match=message):
        cached_arrays(TWO, numbers)
    assert (
        not (data_folder / ".cache").exists()
        and (data_folder / "pair" / "a.bin").read_bytes() == text
    )


def test_an_unpacked_file_is_taken_for_its_gz_without_the_packed_size(data_folder: Path) -> None:
    files = FileSet("pair", "", (FileSource("gz", (File("a.bin.gz", 999),)),))
    put(data_folder / "pair", a=TEXT)
    found = find(files)
    verify(found)
    assert contents(found, "a.bin") == {"a.bin": TEXT}
    (data_folder / "pair" / "a.bin.gz").write_bytes(gzip.compress(TEXT))
    with pytest.raises(DataError, match="cut short"):
        verify(find(files))


@pytest.mark.parametrize("ending", ["tar.gz", "zip"])
def test_archives_are_read_in_place(data_folder: Path, ending: str) -> None:
    path = data_folder / f"all.{ending}"
    if ending == "zip":
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("inner/a.bin.gz", gzip.compress(TEXT))
            archive.writestr("__MACOSX/inner/a.bin", b"not data")
    else:
        with tarfile.open(path, "w:gz") as packed:
            info = tarfile.TarInfo("inner/a.bin.gz")
            info.size = len(gzip.compress(TEXT))
            packed.addfile(info, io.BytesIO(gzip.compress(TEXT)))
    found = find(FileSet("pair", "", (FileSource("packed", (File(path.name),)),)))
    assert contents(found, "a.*") == {"a.bin": TEXT}
    with pytest.raises(DataError, match=r"there is no b\.bin"):
        contents(found, "b.bin")
    path.write_bytes(path.read_bytes()[:40])
    with pytest.raises(DataError, match="cannot be read"):
        contents(found, "a.*")


def test_what_was_decoded_is_kept_mapped_and_read_only(data_folder: Path) -> None:
    put(data_folder / "pair", a=TEXT, b=b"")
    calls: list[LocalFiles] = []

    def decode(found: LocalFiles) -> dict[str, np.ndarray]:
        calls.append(found)
        return numbers(found)

    first, second = cached_arrays(TWO, decode), cached_arrays(TWO, decode)
    assert len(calls) == 1 and bytes(second["x"]) == bytes(first["x"]) == TEXT
    assert isinstance(second["x"], np.memmap) and not second["x"].flags.writeable
    cached_arrays(TWO, decode, version=2)
    cached_arrays(TWO, decode, part="train")
    assert len(calls) == 3


def test_exchanged_files_are_decoded_again(data_folder: Path) -> None:
    files = FileSet("pair", "", (FileSource("plain", (File("a.bin"),)),))
    put(data_folder / "pair", a=b"old")
    assert bytes(cached_arrays(files, numbers)["x"]) == b"old"
    put(data_folder / "pair", a=b"newer")
    assert bytes(cached_arrays(files, numbers)["x"]) == b"newer"


@pytest.mark.parametrize("damage", ["flip", "cut", "remove", "list"])
def test_a_damaged_cache_is_made_again(data_folder: Path, damage: str) -> None:
    put(data_folder / "pair", a=TEXT, b=b"")
    cached_arrays(TWO, numbers)
    (folder,) = (data_folder / ".cache").iterdir()
    kept = folder / "x.npy"
    raw = kept.read_bytes()
    if damage == "remove":
        kept.unlink()
    elif damage == "list":
        (folder / "contents.json").write_text("[")
    else:
        kept.write_bytes(raw[:-3] if damage == "cut" else raw[:-1] + b"?")
    assert bytes(cached_arrays(TWO, numbers)["x"]) == TEXT and kept.read_bytes() == raw


def test_an_interrupted_write_leaves_nothing(
    data_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(data_folder / "pair", a=TEXT, b=b"")

    def interrupted(*_: object) -> int:
        raise KeyboardInterrupt

    with monkeypatch.context() as broken, pytest.raises(KeyboardInterrupt):
        broken.setattr(cache, "checksum", interrupted)
        cached_arrays(TWO, numbers)
    assert list((data_folder / ".cache").iterdir()) == []
    assert bytes(cached_arrays(TWO, numbers)["x"]) == TEXT


def test_two_processes_that_decode_at_once_agree(
    data_folder: Path, recwarn: pytest.WarningsRecorder
) -> None:
    put(data_folder / "pair", a=TEXT, b=b"")

    def decode(found: LocalFiles) -> dict[str, np.ndarray]:
        if not list(data_folder.glob(".cache/*")):
            cached_arrays(TWO, numbers)  # the other process is done first
        return numbers(found)

    assert bytes(cached_arrays(TWO, decode)["x"]) == TEXT
    assert len(list((data_folder / ".cache").iterdir())) == 1 and not recwarn.list


def test_what_a_killed_process_left_is_removed_after_an_hour(data_folder: Path) -> None:
    put(data_folder / "pair", a=TEXT, b=b"")
    cached_arrays(TWO, numbers)
    (folder,) = (data_folder / ".cache").iterdir()
    old, new = (folder.with_name(f"{folder.name}.{name}.tmp") for name in ("old", "new"))
    old.mkdir()
    new.mkdir()
    os.utime(old, (0, 0))
    (folder / "x.npy").unlink()
    cached_arrays(TWO, numbers)
    assert not old.exists() and new.exists()


def test_a_folder_that_cannot_be_written_costs_only_the_cache(
    data_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(data_folder / "pair", a=TEXT, b=b"")
    # a file, so never a folder
    monkeypatch.setenv("FEDBLOCKS_CACHE", str(data_folder / "pair" / "a.bin"))
    with pytest.warns(UserWarning, match="FEDBLOCKS_CACHE"):
        assert bytes(cached_arrays(TWO, numbers)["x"]) == TEXT


class Site(http.server.BaseHTTPRequestHandler):
    """Gives the text whole at /whole, and breaks off at /broken."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(TEXT)))
        self.end_headers()
        self.wfile.write(TEXT if self.path == "/whole" else TEXT[:4])

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def site() -> str:
    """A web site on this machine, so that no test needs a network."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Site)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def offered(url: str, sha256: str = SHA) -> FileSet:
    return FileSet(
        "fetched", "https://example.org", (FileSource("plain", (File("a.bin", 10, sha256, url),)),)
    )


def test_an_official_file_is_fetched_under_its_name(data_folder: Path, site: str) -> None:
    (path,) = download(offered(f"{site}/whole"))
    assert path == data_folder / "fetched" / "a.bin" and path.read_bytes() == TEXT
    assert find(offered("")).paths == (path,) and list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize(("page", "sha256"), [("broken", SHA), ("whole", "0" * 64)])
def test_a_broken_or_wrong_download_leaves_nothing(
    data_folder: Path, site: str, page: str, sha256: str
) -> None:
    with pytest.raises(DataError, match=r"broke off|did not give the official"):
        download(offered(f"{site}/{page}", sha256))
    assert list((data_folder / "fetched").iterdir()) == []


def test_a_file_that_is_there_is_not_fetched_or_overwritten(data_folder: Path) -> None:
    put(data_folder / "fetched", a=b"mine")
    with pytest.raises(DataError, match="cut short"):
        download(offered("http://127.0.0.1:9/never"))
    assert (data_folder / "fetched" / "a.bin").read_bytes() == b"mine"


def test_a_site_that_does_not_answer_is_a_plain_message(data_folder: Path) -> None:
    with pytest.raises(DataError, match="cannot fetch"):
        download(offered("http://127.0.0.1:9/closed"))
    with pytest.raises(DataError, match="cannot be fetched automatically"):
        download(TWO)
