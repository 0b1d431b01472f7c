"""A whole federation in one process, without a network; every message is made and checked as on the wire."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from fedblocks.engines.round import Experiment
from fedblocks.flower.client.side import ClientSide
from fedblocks.flower.client.store import PersonalStore
from fedblocks.flower.server.rounds import OpenRound
from fedblocks.flower.server.side import ServerSide
from fedblocks.flower.wire.admission import Member
from fedblocks.flower.wire.messages import Wire

Answer = Callable[[int, Wire], Wire]  # (client, message) -> what it sends back


def member_of(side: ClientSide, group: str = "all") -> Member:
    """What a client tells the server of itself when it is enrolled."""
    data, client = side.setting.data, side.client
    own = data.train[client]
    labels = data.y[own].numel()  # a method may weigh by labels, of which a sequence has several
    tags = {name: int(values[client]) for name, values in data.tags.items()}
    return Member(client, len(own), float(max(1, labels)), tags, group)


def sides_of(
    setting: Experiment, clients: Sequence[int], run: str, folder: Path
) -> tuple[ServerSide, dict[int, ClientSide]]:
    """Both sides of a federation whose data lie here; each client is given its own rows and no others."""
    groups = {c: group for group, ids in setting.members(clients).items() for c in ids}
    sides = {
        c: ClientSide.of(
            setting.methods[groups[c]], setting.data.subset([c]), c, setting.seed, run,
            PersonalStore.of(folder, "local", run, c),
        )
        for c in clients
    }  # fmt: skip
    members = {c: member_of(side, groups[c]) for c, side in sides.items()}
    server = ServerSide(
        setting.methods, members, setting.data.clients, setting.seed, run, setting.data.x.device, unseen=setting.unseen
    )
    return server, sides


def exchange(round: OpenRound, answer: Answer) -> None:
    """Send every client its messages and take its answers, one client after another."""
    for client, message in round.downloads.items():
        sent: Wire | None = message
        while sent is not None:
            sent = round.receive(client, answer(client, sent))


def answers_of(sides: Mapping[int, ClientSide]) -> Answer:
    """Clients in this process."""
    return lambda client, message: sides[client].answer(message)
