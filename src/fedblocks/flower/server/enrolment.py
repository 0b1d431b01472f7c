"""Who may take part and with how many examples: keys and agreed numbers, read anew when
the server's files change.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median_low

from fedblocks.core.errors import UserError, count_of
from fedblocks.flower.hosts.folders import ServerHost
from fedblocks.flower.keys.client_keys import public_key

FACTOR = 5  # a claim of so many times the median is not believed
CEILING = 10**7  # examples that nobody may claim, whatever the others do


@dataclass(frozen=True)
class Enrolment:
    """The keys of a federation, the clients that each stands for, and the examples that
    these may claim.
    """

    # public key -> its clients; None: anybody's word
    keys: Mapping[bytes, Sequence[int]] | None = None
    # clients of a key -> examples of them all
    agreed: Mapping[tuple[int, ...], int] = field(default_factory=dict)
    # examples of a client without an agreed number; None: FACTOR x the median
    largest: int | None = None

    def knows(self, key: bytes, client: int) -> bool:
        """Whether a key stands for a client."""
        return self.keys is None or client in self.keys.get(key, ())

    def excesses(self, claims: Mapping[int, int], nodes: Mapping[int, int]) -> dict[int, str]:
        """Return the clients that claim too many examples, each with what is wrong."""
        wrong: dict[int, str] = {}
        for clients, number in self.agreed.items():
            here = [c for c in clients if c in claims]
            if (total := sum(claims[c] for c in here)) > number:
                excess = (
                    f"it claims {count_of(total, 'example')}, and {number} were agreed at enrolment"
                )
                wrong |= dict.fromkeys(here, excess)
        bound, why = self._bound(claims, nodes)
        for client, number in claims.items():
            if number > bound and not any(client in some for some in self.agreed):
                wrong[client] = f"it claims {count_of(number, 'example')}, more than {bound}: {why}"
        return wrong

    def _bound(self, claims: Mapping[int, int], nodes: Mapping[int, int]) -> tuple[int, str]:
        """Return the most examples that a client without an agreed number may claim, and why."""
        if self.largest is not None:
            return self.largest, "this is the largest that the server allows"
        voices = self._voices(claims, nodes)
        if not voices:
            return CEILING, "nobody has as many"
        bound = min(CEILING, FACTOR * median_low(voices))
        fix = "if it has them, agree on its number in server.toml (examples)"
        return bound, f"{FACTOR} times the median; {fix}"

    def _voices(self, claims: Mapping[int, int], nodes: Mapping[int, int]) -> list[int]:
        """Return one number of examples for each node, so that a node with many clients has no more
        say than others.

        An agreed number speaks for its own clients. Clients without examples say nothing of the
        others.
        """
        agreed = [
            max(1, n // len(some))
            for some, n in self.agreed.items()
            if any(c in claims for c in some)
        ]
        by_node: dict[int, list[int]] = {}
        for client, number in claims.items():
            if number > 0 and not any(client in some for some in self.agreed):
                by_node.setdefault(nodes.get(client, -1 - client), []).append(number)
        return [*agreed, *(median_low(numbers) for numbers in by_node.values())]


class EnrolmentFiles:
    """The enrolment in a server's folder, read anew when `server.toml` or a key changes."""

    def __init__(self, server: Path, largest: int | None = None) -> None:
        self.server, self.largest = server, largest
        self._stamp: object = None
        self._enrolment = Enrolment({})

    def __call__(self) -> Enrolment:
        stamp = self._stamps()
        if stamp != self._stamp:
            try:
                self._enrolment, self._stamp = self._read(), stamp
            except (UserError, OSError, ValueError):
                if self._stamp is None:
                    raise
        return self._enrolment  # the last good one while somebody is writing

    def _stamps(self) -> object:
        files = [self.server / ServerHost.file(), *sorted((self.server / "clients").glob("*.pub"))]
        return [
            (file.name, status.st_mtime_ns, status.st_size)
            for file in files
            if (status := _status(file))
        ]

    def _read(self) -> Enrolment:
        host = ServerHost.read(self.server)
        files = {name: self.server / "clients" / f"{name}.pub" for name in host.clients}
        known = {name: file for name, file in files.items() if file.exists()}
        keys: dict[bytes, Sequence[int]] | None = None
        if not host.insecure:
            keys = {public_key(file): host.clients[name] for name, file in known.items()}
        agreed = {
            host.clients[name]: number
            for name, number in host.examples.items()
            if name in host.clients
        }
        largest = self.largest if self.largest is not None else host.largest_examples
        return Enrolment(keys, agreed, largest)


def _status(file: Path) -> os.stat_result | None:
    try:
        return file.stat()
    except OSError:
        return None  # being replaced, or gone
