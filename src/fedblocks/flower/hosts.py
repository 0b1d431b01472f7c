"""The machines of a federation: a folder for its server, a folder for each of its clients, and what stands in them."""

from __future__ import annotations

import tomllib
from ipaddress import ip_address
from pathlib import Path
from typing import Any, Literal, TypeVar

import tomli_w
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from fedblocks.core.errors import UserError
from fedblocks.flower.limits import Limits

PORT = 8443
Host = TypeVar("Host", bound="_Host")


class _Host(BaseModel):
    """A folder's configuration, checked."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    @classmethod
    def read(cls: type[Host], folder: Path) -> Host:
        """The configuration in a folder."""
        path = folder / cls.file()
        try:
            return cls.model_validate(tomllib.loads(path.read_text(encoding="utf-8")))
        except OSError as error:
            fix = "name a folder that `fedblocks federation init` made"
            raise UserError(f"cannot read {path}: {error.strerror}", fix) from error
        except tomllib.TOMLDecodeError as error:
            raise UserError(f"{path}: this is not TOML: {error}", "quote text") from error
        except ValidationError as error:
            first = error.errors()[0]
            place = ".".join(map(str, first["loc"])) or "settings"
            message = str(first["msg"]).removeprefix("Value error, ")
            raise UserError(f"{path}: {place}: {message}", "see docs/deploy.md") from error

    @classmethod
    def file(cls) -> str:
        raise NotImplementedError

    def write(self, folder: Path, after: str = "") -> None:
        """Store the configuration in a folder, with more text after it."""
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        text = tomli_w.dumps(self.model_dump(mode="json", exclude_none=True))
        (folder / self.file()).write_text(text + after, encoding="utf-8")


class ServerHost(_Host):
    """`server.toml`."""

    federation: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]*$")
    address: str  # what clients connect to: a name or a number
    port: int = Field(default=PORT, ge=1, le=65535)
    inner_port: int = Field(default=PORT + 1, ge=1, le=65535)  # of the SuperLink, on loopback
    bind: str = "0.0.0.0"  # where to listen
    insecure: bool = False
    limits: Limits | None = None  # of what the other side of a connection may use
    clients: dict[str, tuple[int, ...]] = {}  # name of a public key in clients/ -> the clients that it stands for

    @classmethod
    def file(cls) -> str:
        return "server.toml"

    @model_validator(mode="after")
    def _safe(self) -> ServerHost:
        refuse_insecure(self.insecure, self.address, self.bind)
        return self


class ClientHost(_Host):
    """`client.toml`."""

    federation: str
    server: str  # NAME:PORT
    clients: tuple[int, ...] = Field(min_length=1)  # numbers of the clients whose data are here, usually one
    device: Literal["cpu", "cuda"] = "cpu"
    insecure: bool = False
    pictures: bool = False  # show the server branch weights, routes and other small numbers, for its report
    tags: dict[str, int] = {}
    data: dict[str, Any]  # as in the configuration of a run: a loader's name, its options, a split

    @classmethod
    def file(cls) -> str:
        return "client.toml"

    @model_validator(mode="after")
    def _safe(self) -> ClientHost:
        refuse_insecure(self.insecure, self.server.rpartition(":")[0])
        if [*self.clients] != sorted({*self.clients}) or self.clients[0] < 0:
            raise ValueError("clients: numbers from 0, each once and in order")
        return self


def is_loopback(host: str) -> bool:
    """Whether an address is this machine's own, which no other can reach."""
    try:
        return ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


def refuse_insecure(insecure: bool, *hosts: str) -> None:
    """Without TLS and keys anybody on the way could read and change everything."""
    far = [host for host in hosts if not is_loopback(host)]
    if insecure and far:
        raise ValueError(f"insecure: {far[0]} is not this machine alone; certificates and keys are needed there")
