"""The folders of a federation's machines: `server.toml` for the server, `client.toml`
for a machine with clients.
"""

from __future__ import annotations

import re
import tomllib
from collections import Counter
from ipaddress import ip_address
from pathlib import Path
from typing import Annotated, Any, TypeVar

import tomli_w
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    StringConstraints,
    ValidationError,
    model_validator,
)

from fedblocks.config.toml import fix_of_mistake, parse_toml, place_of_mistake
from fedblocks.core.errors import UserError
from fedblocks.core.small_files import is_file, need_content
from fedblocks.flower.client.policy import Allow
from fedblocks.flower.gateway.limits import Limits
from fedblocks.flower.keys.private_files import private_folder, write_private

PORT = 8443
NAME = r"^[A-Za-z0-9][A-Za-z0-9_-]{0,39}$"  # of a federation or a key: also a file's name
MACHINE = re.compile(
    r"(?=.{1,253}\Z)[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?(\.[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?)*"
)
Name = Annotated[str, StringConstraints(pattern=NAME)]
Host = TypeVar("Host", bound="_Host")


class SettingsError(UserError):
    """The file with the settings of a machine cannot be used."""


class _Host(BaseModel):
    """The configuration of a folder."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    @classmethod
    def read(cls: type[Host], folder: Path) -> Host:
        """Read the configuration of a folder."""
        path = folder / cls.file()
        content = need_content(path, _right_folder(folder, cls.file(), cls.maker()))
        try:
            return cls.model_validate(parse_toml(content.decode("utf-8")))
        except UnicodeDecodeError as error:
            raise SettingsError(f"{path}: this is not UTF-8 text", "save it as UTF-8") from error
        except tomllib.TOMLDecodeError as error:
            place, fix = place_of_mistake(path, error), fix_of_mistake(error)
            raise SettingsError(f"{place}: this is not TOML: {error}", fix) from error
        except ValidationError as error:
            first = error.errors()[0]
            place = ".".join(map(str, first["loc"])) or "settings"
            message = str(first["msg"]).removeprefix("Value error, ")
            raise SettingsError(f"{path}: {place}: {message}", "see docs/deploy.md") from error

    @classmethod
    def file(cls) -> str:
        raise NotImplementedError

    @classmethod
    def maker(cls) -> str:
        """Return the command that makes such a folder."""
        raise NotImplementedError

    def write(self, folder: Path, after: str = "") -> None:
        """Store the configuration in a folder, with more text after it; readers see the
        old one or the new.
        """
        text = tomli_w.dumps(self.model_dump(mode="json", exclude_none=True))
        write_private(private_folder(folder) / self.file(), (text + after).encode())


def _right_folder(folder: Path, file: str, maker: str) -> str:
    """Return which folder to name instead of one that has no such file."""
    if is_file(folder / "server" / file):
        return f"name the server's folder: {folder / 'server'}"
    others = {"server.toml": "the server", "client.toml": "a client"}
    for name, owner in others.items():
        if name != file and is_file(folder / name):
            return f"this is the folder of {owner}; name one that `federation {maker}` made"
    return f"name a folder that `fedblocks federation {maker}` made"


class ServerHost(_Host):
    """`server.toml`."""

    federation: Name
    address: str  # what clients connect to: a name or a number
    port: int = Field(default=PORT, ge=1, le=65535)
    inner_port: int = Field(default=PORT + 1, ge=1, le=65535)  # of the SuperLink, on loopback
    bind: str = "0.0.0.0"  # where to listen
    insecure: bool = False
    # name of a public key in clients/ -> the clients that it stands for
    clients: dict[Name, tuple[int, ...]] = {}
    # name -> training examples agreed on, of all its clients
    examples: dict[Name, Annotated[int, Field(ge=0)]] = {}
    # of a client without them; default: 5 x the median
    largest_examples: int | None = Field(default=None, ge=1)
    since: dict[Name, str] = {}  # name -> when its key was enrolled
    limits: Limits | None = None  # of what the other side of a connection may use

    @classmethod
    def file(cls) -> str:
        return "server.toml"

    @classmethod
    def maker(cls) -> str:
        return "init"

    @model_validator(mode="after")
    def _safe(self) -> ServerHost:
        refuse_insecure(self.insecure, self.address, self.bind)
        held = Counter(number for numbers in self.clients.values() for number in numbers)
        if wrong := [number for number, keys in held.items() if number < 0 or keys > 1]:
            raise ValueError(f"clients: number {wrong[0]} is negative, or stands twice")
        return self


class ClientHost(_Host):
    """`client.toml`."""

    federation: Name
    name: Name | None = None  # of its key
    server: str  # NAME:PORT
    # numbers of the clients whose data are here, usually one
    clients: tuple[int, ...] = Field(min_length=1)
    device: str = Field(default="cpu", pattern=r"^(cpu|cuda(:[0-9]+)?)$")
    insecure: bool = False
    tags: dict[str, int] = {}
    allow: Allow = Allow()  # what the owner of these data lets happen
    data: dict[str, Any]  # as in the configuration of a run: a loader's name, its options, a split
    task: dict[str, Any] = {}  # what the targets are, as in [task]; empty: as the run says

    @classmethod
    def file(cls) -> str:
        return "client.toml"

    @classmethod
    def maker(cls) -> str:
        return "join"

    @model_validator(mode="after")
    def _safe(self) -> ClientHost:
        refuse_insecure(self.insecure, self.server.rpartition(":")[0])
        if [*self.clients] != sorted({*self.clients}) or self.clients[0] < 0:
            raise ValueError("clients: numbers from 0, each once and in order")
        return self


def address_of(text: str, default: int | None = None) -> tuple[str, int]:
    """Read the name and the port of a server's machine."""
    machine, colon, port = text.partition(":")
    if not colon:
        port = str(default or "")
    if MACHINE.fullmatch(machine) is None or (port and not (port.isascii() and port.isdigit())):
        raise UserError(
            f'"{text}" does not name a machine',
            "write fl.example.org:8443 or 192.0.2.7:8443, no more",
        )
    if not port or not 1 <= int(port) <= 65535:
        raise UserError(f'"{text}" has no port from 1 to 65535', f"write {machine}:{PORT}")
    return machine, int(port)


def is_loopback(host: str) -> bool:
    """Whether an address is this machine's own, which no other can reach."""
    try:
        return ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


def refuse_insecure(insecure: bool, *hosts: str) -> None:
    """Refuse to go without TLS and keys where others could read and change everything."""
    far = [host for host in hosts if not is_loopback(host)]
    if insecure and far:
        raise ValueError(
            f"insecure: {far[0]} is not this machine alone; certificates and keys are needed there"
        )
