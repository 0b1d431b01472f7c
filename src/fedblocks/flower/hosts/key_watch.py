"""A server's certificates before it starts, and keys that are enrolled or revoked while it runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from fedblocks.core.errors import UserError
from fedblocks.flower.hosts import running
from fedblocks.flower.hosts.folders import ServerHost
from fedblocks.flower.hosts.process_group import ProcessGroup
from fedblocks.flower.keys.shared_keys import read_shared

Tell = Callable[[str], None]
AGAIN = 30.0  # seconds until keys that Flower did not take are tried again


def check_server(folder: Path, tell: Tell) -> None:
    """Refuse a server's certificates and keys if they are wrong, and warn of those that
    expire soon.
    """
    host = ServerHost.read(folder)
    if not host.insecure:
        from fedblocks.flower.keys import certificate_checks as checks

        for warning in checks.check_server(folder, host.address):
            tell(warning)


@dataclass(eq=False)
class KeyWatch:
    """Keys that are enrolled, replaced or revoked while the server runs."""

    folder: Path
    tell: Tell
    # of server.toml, which is written anew with every change
    _seen: tuple[int, int] = field(init=False)
    _failed: bool = False
    _shared: set[str] = field(default_factory=set)  # names of keys that were told of

    def __post_init__(self) -> None:
        self._seen = self._state()

    def follow(self, processes: ProcessGroup) -> None:
        """Tell Flower what changed; if that fails, say so and try again later."""
        self._tell_shared()
        state = self._state()
        if state == self._seen and not (self._failed and processes.due("keys", AGAIN)):
            return
        self._seen = state
        try:
            running.enrol(ServerHost.read(self.folder), self.folder, self.tell)
            self._failed = False
        except UserError as error:
            self._failed = True
            self.tell(f"changes of keys were not taken up: {error.message}")

    def _tell_shared(self) -> None:
        """Tell once of a key that is used in several places, and again if it is so later."""
        shared = read_shared(self.folder)
        for name in sorted(shared.keys() - self._shared):
            self.tell(f"warning: {shared[name].sentence(name, self.folder)}")
        self._shared = {*shared}

    def _state(self) -> tuple[int, int]:
        try:
            status = (self.folder / ServerHost.file()).stat()
        except OSError:  # somebody is editing it
            return (0, 0)
        return status.st_mtime_ns, status.st_ino
