"""A whole federation in one process, without a network; every message is made and
checked as on the wire.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from fedblocks.engines.round import Experiment
from fedblocks.flower.client.side import ClientSide, member_of
from fedblocks.flower.client.store import PersonalStore
from fedblocks.flower.server.rounds import OpenRound
from fedblocks.flower.server.side import ServerSide
from fedblocks.flower.wire.messages import Wire

Answer = Callable[[int, Wire], Wire]  # (client, message) -> what it sends back


def sides_of(
    experiment: Experiment, clients: Sequence[int], run: str, folder: Path
) -> tuple[ServerSide, dict[int, ClientSide]]:
    """Return both sides of a federation whose data are here; each client holds its own
    rows and no others.
    """
    groups = {c: group for group, ids in experiment.members(clients).items() for c in ids}
    data, seed = experiment.data, experiment.seed
    sides: dict[int, ClientSide] = {}
    for c in clients:
        method = experiment.methods[groups[c]]
        store = PersonalStore.of(folder, "local", run, c)
        sides[c] = ClientSide.of(method, data.subset([c]), c, seed, run, store)
    members = {c: member_of(side, groups[c]) for c, side in sides.items()}
    server = ServerSide(
        methods=experiment.methods,
        members=members,
        population=data.clients,
        seed=seed,
        run=run,
        device=data.device,
        unseen=experiment.unseen,
        task=data.task,
    )
    return server, sides


def exchange(round: OpenRound, answer: Answer) -> None:
    """Send every client its messages and take its answers, one client after another."""
    for client, message in round.downloads.items():
        sent: Wire | None = message
        while sent is not None:
            sent = round.receive(client, answer(client, sent))


def answers_of(sides: Mapping[int, ClientSide]) -> Answer:
    """Return a function that answers for clients in this process."""
    return lambda client, message: sides[client].answer(message)
