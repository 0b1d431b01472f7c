"""Flower's two apps around both sides of a round: one message a node and round, two where slots are on request."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import httpx
from flwr.app import ConfigRecord, Context, Message, MessageType, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

from fedblocks.core.errors import UserError
from fedblocks.flower.client.side import ClientSide
from fedblocks.flower.local import member_of
from fedblocks.flower.server.enrolment import Enrolment
from fedblocks.flower.server.registry import PAUSE, UNANSWERED, Registry, pull, refuse_lasting
from fedblocks.flower.server.rounds import OpenRound
from fedblocks.flower.server.side import Ask, Closed, Progress, ServerSide
from fedblocks.flower.wire.messages import Malformed, Wire
from fedblocks.flower.wire.records import NPY_HEADER, from_content, to_content, with_terms

Sides = Mapping[int, tuple[ClientSide, str]]  # client -> its side, and the group that it belongs to
Choose = Callable[[Progress, int], tuple[Sequence[int], Ask]]  # (so far, attempts at this round) -> whom to ask what
OnRound = Callable[[Closed], None]
LOST = {3, 4}  # Flower's errors: a message, or the answer to it, did not arrive whole; its node is there
RETRY = 2.0  # seconds until what was lost is sent again
log = logging.getLogger(__name__)
Begin = Callable[[Context, Registry], tuple[ServerSide, Progress]]  # anew, or where a run stopped


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
    """Messages to clients by their numbers, over Flower's grid; what is lost on its way is sent again."""

    grid: Grid
    nodes: Mapping[int, int]  # client -> Flower's node
    terms: str = ""  # what nodes are told of the run
    waiting: dict[str, dict[int, Wire]] = field(default_factory=dict)  # message -> what it brings, if unanswered
    lost: dict[int, tuple[float, Wire]] = field(default_factory=dict)  # client -> when to send it what again

    def forget(self) -> None:
        """Whatever an earlier round still brings comes too late."""
        self.waiting.clear()
        self.lost.clear()

    def send(self, messages: Mapping[int, Wire], group: str, seconds: float) -> list[int]:
        """One message for each node that holds some of these clients; the clients whose nodes Flower does not know."""
        by_node: dict[int, dict[int, Wire]] = {}
        for client, message in messages.items():
            by_node.setdefault(self.nodes[client], {})[client] = message
        if not by_node:
            return []
        outgoing = [
            Message(with_terms(to_content(some), self.terms), node, MessageType.TRAIN, group_id=group, ttl=seconds)
            for node, some in by_node.items()
        ]
        try:
            numbers = list(self.grid.push_messages(outgoing))
        except httpx.HTTPStatusError as error:
            refuse_lasting(error)
            self._lose(messages)
            return []
        unknown: list[int] = []
        for number, some in zip(numbers, by_node.values(), strict=True):
            if number:
                self.waiting[number] = some
            else:
                unknown += some
        return unknown

    def come(self) -> Iterable[tuple[tuple[int, ...], Message]]:
        """What has come since the last look; an answer is placed by the message that it answers."""
        for message in pull(self.grid, self.waiting):
            brought = self.waiting.pop(message.metadata.reply_to_message_id, None)
            if brought is None:
                continue
            if message.has_error() and message.error.code in LOST:
                log.warning("clients %s: asked again, %s", sorted(brought), message.error.reason)
                self._lose(brought)
            else:
                yield tuple(brought), message

    def _lose(self, messages: Mapping[int, Wire]) -> None:
        due = time.monotonic() + RETRY
        self.lost.update({client: (due, message) for client, message in messages.items()})

    def due_again(self) -> dict[int, Wire]:
        """What was lost long enough ago to be sent again."""
        now = time.monotonic()
        return {client: self.lost.pop(client)[1] for client, (due, _) in [*self.lost.items()] if due <= now}


@dataclass(frozen=True)
class RoundTerms:
    """When rounds end, and when a run does."""

    rounds: int
    minimum: int  # updates below which a round is abandoned
    seconds: float  # that a round may take
    goal: int | None = None  # updates that are enough; ask more clients than this, and slow ones are not waited for
    attempts: int = 3  # at the same round, before the run is given up
    patience: float = 60.0  # seconds to wait for clients that are not there


def play_round(link: Link, open_round: OpenRound, minimum: int, seconds: float, goal: int | None = None) -> Closed:
    """One round over the grid: it ends when all have answered, when enough have (`goal`), or when time is up."""
    end = time.monotonic() + seconds
    link.forget()
    asked = len(open_round.downloads)
    _send(link, open_round, open_round.downloads, seconds)
    while open_round.waiting and open_round.admitted < (goal or asked) and time.monotonic() < end:
        more: dict[int, Wire] = {}
        for clients, message in link.come():
            more |= _taken(open_round, clients, message)
        _send(link, open_round, more | link.due_again(), max(1.0, end - time.monotonic()))
        time.sleep(PAUSE if open_round.waiting and not more else 0)
    return open_round.close(minimum)


def _send(link: Link, open_round: OpenRound, messages: Mapping[int, Wire], seconds: float) -> None:
    """Send what can be sent; the round goes on without clients whose nodes are gone."""
    reached = {client: message for client, message in messages.items() if client in link.nodes}
    unknown = link.send(reached, str(open_round.progress.state.round), seconds)
    for client in [*(messages.keys() - reached.keys()), *unknown]:
        open_round.refuse(client, "unreachable", "its node has left")


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
        elif client in open_round.waiting and (fresh := open_round.ask_again(client)) is not None:
            more[client] = fresh
    return more


def run_rounds(
    roll: Registry, side: ServerSide, terms: RoundTerms, choose: Choose, progress: Progress, on_round: OnRound
) -> Progress:
    """All rounds that are left. Abandoned ones are tried again, with the clients that `choose` names then."""
    attempt, link = 0, Link(roll.grid, roll.nodes, roll.terms)
    while progress.state.round < terms.rounds:
        roll.look()
        clients, ask = choose(progress, attempt)
        if len(roll.nodes.keys() & {*clients}) < min(terms.minimum, len(clients)):
            roll.wait(clients, min(terms.minimum, len(clients)), terms.patience)
        roll.fix_claims(clients)
        closed = play_round(link, OpenRound(side, progress, clients, ask), terms.minimum, terms.seconds, terms.goal)
        on_round(closed)
        progress, attempt = closed.progress, attempt + 1 if closed.abandoned else 0
        if attempt >= terms.attempts:
            told = "; ".join(f"client {r.client}: {r.reason}, {r.detail}" for r in closed.report.refusals[:3])
            message = f"round {progress.state.round + 1} was abandoned {attempt} times: {closed.abandoned} ({told})"
            raise UserError(message, "see why clients were refused, or lower the minimum; then go on with the run")
    return progress


def server_app(
    begin: Begin,
    terms: RoundTerms,
    choose: Choose,
    on_round: OnRound,
    clients: Sequence[int],
    enrolled: Callable[[], Enrolment] = Enrolment,
    labels: int = 1,
) -> ServerApp:
    """The app of a server: wait for these clients, and go through the rounds. `labels` are those of one example."""

    def main(grid: Grid, context: Context) -> None:
        roll = Registry(grid, enrolled, labels)
        roll.wait(clients, len(clients), terms.patience)
        side, progress = begin(context, roll)
        run_rounds(roll, side, terms, choose, progress, on_round)

    app = ServerApp()
    app.main()(main)
    return app
