"""Pipes, sockets and devices in the place of data are refused: nobody waits for what may never
come, and nothing without an end is read.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest
from torch import nn

from fedblocks import Federation
from fedblocks.config.presets import read_config
from fedblocks.config.texts import read_text
from fedblocks.core.errors import DataError
from fedblocks.core.samplers import _read_trace
from fedblocks.data.sets.own import image
from fedblocks.data.storage import read_arrays
from fedblocks.export.inputs import _from_csv
from fedblocks.nets.mobilenet import _load
from fedblocks.runs.federations import federation_of

pytestmark = pytest.mark.timeout(20)
KINDS = {"pipe": "a named pipe", "socket": "a socket", "device": "a device"}
READERS: dict[str, Callable[[Path], object]] = {
    "csv": Federation.from_csv,
    "parquet": Federation.from_parquet,
    "npz": Federation.from_npz,
    "saved": Federation.load,
    "an image": lambda path: image(path, None),
    "arrays": read_arrays,
    "a trace of clients": _read_trace,
    "inputs of a model": lambda path: _from_csv(path, []),
    "weights of a net": lambda path: _load(path, nn.Linear(1, 1)),
}


@pytest.fixture(params=KINDS)
def special(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, str]:
    """What is at a path is not a file, and how it is named."""
    path = tmp_path / "data"
    if request.param == "pipe":
        os.mkfifo(path)
    elif request.param == "socket":
        with socket.socket(socket.AF_UNIX) as bound:
            bound.bind(str(path))
    else:
        path.symlink_to("/dev/zero")
    return path, KINDS[request.param]


@pytest.mark.parametrize("reader", READERS)
def test_what_is_neither_file_nor_folder_is_refused_unread(
    reader: str, special: tuple[Path, str]
) -> None:
    path, kind = special
    with pytest.raises(DataError, match=f"^{path} is {kind}, not a file") as caught:
        READERS[reader](path)
    assert "put a file in its place" in caught.value.fix


@pytest.mark.parametrize("name", ["csv", "parquet", "npz", "saved", "texts"])
def test_a_configuration_that_names_a_pipe_is_refused(name: str, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "data")
    changes = [f'data={{name = "{name}", clients = 2, options = {{path = "{tmp_path / "data"}"}}}}']
    with pytest.raises(DataError, match="is a named pipe, not a file"):
        federation_of(read_config("digits-fedavg", changes))


@pytest.mark.parametrize("name", ["image_folder", "hugging_face"])
def test_a_pipe_in_the_place_of_a_folder_is_refused(name: str, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "data")
    changes = [f'data={{name = "{name}", clients = 2, options = {{path = "{tmp_path / "data"}"}}}}']
    with pytest.raises(DataError):
        federation_of(read_config("digits-fedavg", changes))


@pytest.mark.parametrize("reader", [Federation.from_parquet, Federation.from_hf])
def test_a_folder_with_a_pipe_among_its_files_is_refused(
    reader: Callable[[Path], object], tmp_path: Path
) -> None:
    for name in ("state.json", "part.parquet"):
        os.mkfifo(tmp_path / name)
    with pytest.raises(DataError, match="is a named pipe, not a file"):
        reader(tmp_path)


def test_a_pipe_is_no_configuration(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "c.toml")
    with pytest.raises(ValueError, match="a named pipe, not a plain file"):
        read_text(tmp_path / "c.toml")
