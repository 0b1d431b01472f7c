"""Whatever lies at a path that a command is given, or in a folder that it is given: it ends at
once, with one error that names the path. A pipe keeps nobody waiting, a device is not read for
ever, and no error is taken for one of the library's own.
"""

from __future__ import annotations

import os
import shutil
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fedblocks.flower import simulation
from fedblocks.flower.hosts import launch, running
from tests.cli.test_every_command import EVERY, SOONER, words
from tests.flower.key_folders import Federation

pytestmark = pytest.mark.timeout(60)
WRITTEN = {"--out", "--output", "--figures"}  # what a command writes
PLACES = {"SERVER", "FOLDER", "FILE", "RUN", "[RUN]", "CONFIG", "[CONFIG]", "MODEL", "PATH"}


def _pipe(path: Path) -> None:
    os.mkfifo(path)


def _socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as bound:
        os.chdir(path.parent)  # the names of sockets are short
        bound.bind(path.name)


THINGS: dict[str, Callable[[Path], None]] = {
    "a named pipe": _pipe,
    "a socket": _socket,
    "a device": lambda path: path.symlink_to("/dev/zero"),
    "a folder": Path.mkdir,
}
# `watch` waits for a run in an empty folder, `init` makes its own folder in one that is there
FITTING = {("watch",), ("federation", "init")}
NAMED = [
    (path, one.opts[0], one.param_type_name)
    for path, command in EVERY.items()
    for one in command.params
    if one.metavar in PLACES and one.opts[0] not in WRITTEN
]


@pytest.fixture(autouse=True)
def all_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(simulation, "need_ray", lambda: None)
    monkeypatch.setattr(launch, "need_flower", lambda: None)


def call(path: tuple[str, ...], name: str, kind: str, value: str) -> list[str]:
    """A call of a command with this value for one of its parameters."""
    asked: list[str] = [*path]
    for one in EVERY[path].params:
        if one.opts[0] == name:
            asked += [name, value] if kind == "option" else [value]
        elif one.required:
            needed = words(path)
            alone = [one.opts[0]] if one.opts[0].startswith("-") else []
            place = needed.index(one.opts[0]) + 1 if alone else -1
            asked += [*alone, needed[place] if alone else _argument(one)]
    return asked


def _argument(one: Any) -> str:
    return {"CONFIG": "digits-fedavg", "METHOD": "fedavg", "NET": "mlp"}.get(one.metavar, "there")


def test_the_walk_knows_every_path_that_a_command_reads() -> None:
    read = {(path, name) for path, name, _ in NAMED}
    for path, command in EVERY.items():
        for one in command.params:
            if "Path" in type(one.type).__name__ and one.opts[0] not in WRITTEN:
                assert (path, one.opts[0]) in read
    assert len(read) > 50


@pytest.mark.parametrize("thing", THINGS)
@pytest.mark.parametrize(("path", "name", "kind"), NAMED)
def test_what_is_not_the_file_or_folder_that_is_meant_ends_a_command_with_one_error(
    path: tuple[str, ...],
    name: str,
    kind: str,
    thing: str,
    fedblocks: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if thing == "a folder" and path in FITTING:
        return
    is_code, is_config = name == "--code", name in ("config", "what")
    at = tmp_path / f"thing{'.py' if is_code else '.toml' if is_config else '.npz'}"
    THINGS[thing](at)
    if name == "what":  # else a server that is not running is named first
        monkeypatch.setattr(running, "check_running", lambda folder: None)
    search = ["--set", "method.lr=0.1..1"] if path == ("tune",) else []
    done = fedblocks(*call(path, name, kind, str(at)), *search)
    expect_one_error(done)
    if is_config or (is_code and path not in SOONER):
        assert f"{at}: it is {thing}, not a plain file" in done.err


def expect_one_error(done: Any) -> None:
    assert done.code in (2, 3, 4, 5), done.err
    assert done.err.count("error: ") == 1 and "this is a bug" not in done.err, done.err
    assert "[Errno" not in done.err and "Traceback" not in done.err, done.err


SERVER = {  # file -> the commands that read it
    "server.toml": ("enrol", "revoke", "keys", "renew", "server", "status", "stop", "run", "adapt"),
    "ca.crt": ("renew", "server", "status", "run"),
    "server.crt": ("renew", "server", "status"),
    "server.key": ("server",),
    "clients/one.pub": ("revoke", "keys", "enrol", "server", "run", "status"),
}
CLIENT = {
    "client.toml": ("rotate", "client"),
    "client.key": ("rotate", "client"),
    "ca.crt": ("client",),
    "client.key.new": ("rotate",),
}


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A server's folder, and those of two clients, of which one is enrolled."""
    base = tmp_path_factory.mktemp("federation")
    Federation(base, f"127.0.0.1:{launch.free_port()}", launch.free_port()).enrolled("one")
    shutil.copytree(base / "one", base / "two")
    return base


@pytest.mark.parametrize("thing", THINGS)
@pytest.mark.parametrize(
    ("file", "command"), [(file, one) for file, uses in SERVER.items() for one in uses]
)
def test_what_is_not_a_file_of_a_servers_folder_is_named(
    file: str, command: str, thing: str, fedblocks: Any, template: Path, tmp_path: Path
) -> None:
    shutil.copytree(template / "f", tmp_path / "f")
    server = tmp_path / "f" / "server"
    (server / file).unlink()
    THINGS[thing](server / file)
    key = template / "one" / "one.pub"
    calls = {
        "enrol": ["enrol", server, key, "--client", "0"],
        "revoke": ["revoke", server, "one"],
        "run": ["run", "digits-fedavg", "--server", server, "--out", tmp_path / "run"],
        "adapt": ["adapt", tmp_path, "--server", server, "--client", "2"],
    }
    asked = calls.get(command, [command, server])
    done = fedblocks("federation", *map(str, asked))
    expect_one_error(done)
    assert f"cannot read {server / file}: it is {thing}, not a plain file" in done.err


@pytest.mark.parametrize("thing", THINGS)
@pytest.mark.parametrize(
    ("file", "command"), [(file, one) for file, uses in CLIENT.items() for one in uses]
)
def test_what_is_not_a_file_of_a_clients_folder_is_named(
    file: str, command: str, thing: str, fedblocks: Any, template: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "two"
    shutil.copytree(template / "one", folder)
    (folder / file).unlink(missing_ok=True)
    THINGS[thing](folder / file)
    done = fedblocks("federation", command, str(folder))
    expect_one_error(done)
    assert f"cannot read {folder / file}: it is {thing}, not a plain file" in done.err


@pytest.mark.parametrize("thing", THINGS)
def test_what_is_not_a_certificate_or_a_key_is_named(
    thing: str, fedblocks: Any, template: Path, tmp_path: Path
) -> None:
    at = tmp_path / "thing"
    THINGS[thing](at)
    join = ["join", "new", "--server", "127.0.0.1:8443", "--ca", at]
    shutil.copytree(template / "f", tmp_path / "f")
    server = tmp_path / "f" / "server"
    for asked in (join, ["enrol", server, at, "--client", "3"]):
        done = fedblocks("federation", *map(str, asked))
        expect_one_error(done)
        assert f"cannot read {at}: it is {thing}, not a plain file" in done.err
    done = fedblocks("federation", "renew", str(server), "--ca-key", str(at))
    expect_one_error(done)
    assert not (tmp_path / "new").exists()
