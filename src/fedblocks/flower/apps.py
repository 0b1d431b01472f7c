"""Flower's two apps around both sides of a round: one message a node and round, two where slots are on request."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from flwr.app import ConfigRecord, Context, Message, MessageType, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

from fedblocks.core.errors import UserError
from fedblocks.flower.client import ClientSide
from fedblocks.flower.local import member_of
from fedblocks.flower.messages import Malformed, Wire
from fedblocks.flower.records import NPY_HEADER, from_content, to_content, with_terms
from fedblocks.flower.roll import PAUSE, UNANSWERED, Roll
from fedblocks.flower.rounds import OpenRound
from fedblocks.flower.server import Ask, Closed, Progress, ServerSide

Sides = Mapping[int, tuple[ClientSide, str]]  # client -> its side, and the group that it belongs to
Choose = Callable[[Progress, int], tuple[Sequence[int], Ask]]  # (so far, attempts at this round) -> whom to ask what
OnRound = Callable[[Closed], None]
Begin = Callable[[Context, Roll], tuple[ServerSide, Progress]]  # anew, or where a run stopped


def client_app(sides_of: Callable[[Context], Sides]) -> ClientApp:
    """The app of a node; given Flower's context it finds the clients that it holds."""
    app = ClientApp()
    app.train()(lambda message, context: work(message, sides_of(context)))
    app.query("hello")(lambda message, context: hello(message, lambda: sides_of(context)))
    return app


def work(message: Message, sides: Sides) -> Message:
    """What the clients of a node answer to what they are asked in a round."""
    asked = {c: m for c, m in from_content(message.content).items() if isinstance(m, Wire) and c in sides}
    return Message(to_content({c: sides[c][0].answer(m) for c, m in asked.items()}), reply_to=message)


def hello(message: Message, sides_of: Callable[[], Sides]) -> Message:
    """Who the clients of a node are, or why they cannot take part."""
    told: dict[str, object]
    try:
        told = {"members": [vars(member_of(*side)) for side in sides_of().values()]}
    except Malformed as error:
        told = {"reason": error.reason, "detail": error.detail}
    except UserError as error:
        told = {"reason": "client-error", "detail": error.message}
    return Message(RecordDict({"hello": ConfigRecord({"json": json.dumps(told)})}), reply_to=message)


@dataclass(frozen=True, eq=False)
class Link:
    """Messages to clients by their numbers, over Flower's grid."""

    grid: Grid
    nodes: Mapping[int, int]  # client -> Flower's node
    terms: str = ""  # what nodes are told of the run
    waiting: dict[str, tuple[int, ...]] = field(default_factory=dict)  # message -> its clients, if without an answer

    def send(self, messages: Mapping[int, Wire], group: str, seconds: float) -> None:
        """One message for each node that holds some of these clients."""
        by_node: dict[int, dict[int, Wire]] = {}
        for client, message in messages.items():
            by_node.setdefault(self.nodes[client], {})[client] = message
        found = [
            Message(with_terms(to_content(some), self.terms), node, MessageType.TRAIN, group_id=group, ttl=seconds)
            for node, some in by_node.items()
        ]
        if found:
            clients = [tuple(some) for some in by_node.values()]
            self.waiting.update(zip(self.grid.push_messages(found), clients, strict=True))

    def come(self) -> Iterable[tuple[tuple[int, ...], Message]]:
        """What has come since the last look; an answer is placed by the message that it answers."""
        for message in self.grid.pull_messages(list(self.waiting)):
            clients = self.waiting.pop(message.metadata.reply_to_message_id, None)
            if clients is not None:
                yield clients, message


@dataclass(frozen=True)
class Terms:
    """When rounds end, and when a run does."""

    rounds: int
    minimum: int  # updates below which a round is abandoned
    seconds: float  # that a round may take
    goal: int | None = None  # updates that are enough; ask more clients than this, and slow ones are not waited for
    attempts: int = 3  # at the same round, before the run is given up
    patience: float = 60.0  # seconds to wait for clients that are not there


def play_round(link: Link, open_round: OpenRound, minimum: int, seconds: float, goal: int | None = None) -> Closed:
    """One round over the grid: it ends when all have answered, when enough have (`goal`), or when time is up."""
    group, end = str(open_round.progress.state.round), time.monotonic() + seconds
    link.waiting.clear()  # whatever an earlier round still brings comes too late
    reached = {c: m for c, m in open_round.downloads.items() if c in link.nodes}
    for client in open_round.downloads.keys() - reached.keys():
        open_round.refuse(client, "unreachable", "its node has left")
    link.send(reached, group, seconds)
    while open_round.waiting and open_round.admitted < (goal or len(reached)) and time.monotonic() < end:
        more: dict[int, Wire] = {}
        for clients, message in link.come():
            more |= _taken(open_round, clients, message)
        link.send({c: m for c, m in more.items() if c in link.nodes}, group, max(1.0, end - time.monotonic()))
        time.sleep(PAUSE if open_round.waiting and not more else 0)
    return open_round.close(minimum)


def _taken(open_round: OpenRound, clients: Sequence[int], message: Message) -> dict[int, Wire]:
    """Hand the answer of a node to the round; what its clients are sent next, if anything."""
    try:
        if message.has_error():
            reason = "no-answer" if message.error.code in UNANSWERED else "client-error"
            raise Malformed(reason, f"{message.error.code}: {message.error.reason}")
        found = from_content(message.content, {c: open_round.limit(c, NPY_HEADER) for c in clients})
    except Malformed as error:
        found = dict.fromkeys(clients, error)
    more: dict[int, Wire] = {}
    for client in clients:
        answer = found.get(client, Malformed("envelope", "the answer says nothing of this client"))
        if isinstance(answer, Malformed):
            open_round.refuse(client, answer.reason, answer.detail)
        elif (sent := open_round.receive(client, answer)) is not None:
            more[client] = sent
    return more


def run_rounds(
    roll: Roll, side: ServerSide, terms: Terms, choose: Choose, progress: Progress, on_round: OnRound
) -> Progress:
    """All rounds that are left. Abandoned ones are tried again, with the clients that `choose` names then."""
    attempt, link = 0, Link(roll.grid, roll.nodes, roll.terms)
    while progress.state.round < terms.rounds:
        roll.look()
        clients, ask = choose(progress, attempt)
        if len(roll.nodes.keys() & {*clients}) < min(terms.minimum, len(clients)):
            roll.wait(clients, min(terms.minimum, len(clients)), terms.patience)
        closed = play_round(link, OpenRound(side, progress, clients, ask), terms.minimum, terms.seconds, terms.goal)
        on_round(closed)
        progress, attempt = closed.progress, attempt + 1 if closed.abandoned else 0
        if attempt >= terms.attempts:
            told = "; ".join(f"client {r.client}: {r.reason}, {r.detail}" for r in closed.report.refusals[:3])
            message = f"round {progress.state.round + 1} was abandoned {attempt} times: {closed.abandoned} ({told})"
            raise UserError(message, "see why clients were refused, or lower the minimum; then go on with the run")
    return progress


def server_app(begin: Begin, terms: Terms, choose: Choose, on_round: OnRound, clients: Sequence[int]) -> ServerApp:
    """The app of a server: wait for these clients, and go through the rounds."""

    def main(grid: Grid, context: Context) -> None:
        roll = Roll(grid)
        roll.wait(clients, len(clients), terms.patience)
        side, progress = begin(context, roll)
        run_rounds(roll, side, terms, choose, progress, on_round)

    app = ServerApp()
    app.main()(main)
    return app
