"""Rounds over Flower's grid: one message per node and round, two where slots are on
request; and the server's app.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import httpx
from flwr.app import Context, Message, MessageType
from flwr.serverapp import Grid, ServerApp

from fedblocks.core.errors import UserError, count_of
from fedblocks.flower.server.enrolment import Enrolment
from fedblocks.flower.server.pulling import LOST, ROOM, UNUSABLE, Inbox, refuse_lasting
from fedblocks.flower.server.registry import PAUSE, UNANSWERED, Registry
from fedblocks.flower.server.rounds import OpenRound
from fedblocks.flower.server.side import Ask, Closed, Progress, ServerSide
from fedblocks.flower.wire.messages import Malformed, Wire
from fedblocks.flower.wire.records import NPY_HEADER, from_content, to_content, with_spec

# (so far, attempts at this round) -> whom to ask what
Choose = Callable[[Progress, int], tuple[Sequence[int], Ask]]
OnRound = Callable[[Closed], None]
RETRY = 2.0  # seconds until what was lost is sent again
log = logging.getLogger(__name__)
Begin = Callable[[Context, Registry], tuple[ServerSide, Progress]]  # anew, or where a run stopped


@dataclass(frozen=True, eq=False)
class Link:
    """Messages to clients by their numbers, over Flower's grid; what is lost on its way
    is sent again.
    """

    grid: Grid
    nodes: Mapping[int, int]  # client -> Flower's node
    spec: str = ""  # the run specification, as JSON
    # those of these clients that may not take part
    revoked: Callable[[Iterable[int]], list[int]] = lambda clients: []
    # message -> what it brings, if unanswered
    waiting: dict[str, dict[int, Wire]] = field(default_factory=dict)
    # client -> when to send it what again
    lost: dict[int, tuple[float, Wire]] = field(default_factory=dict)

    @cached_property
    def inbox(self) -> Inbox:
        """What has come, whole or in part."""
        return Inbox(self.grid)

    @staticmethod
    def of(registry: Registry) -> Link:
        """Return a link to the clients of a registry."""
        return Link(registry.grid, registry.nodes, registry.spec, registry.revoked)

    def forget(self) -> None:
        """Forget the messages of an earlier round: their answers come too late."""
        self.waiting.clear()
        self.lost.clear()

    def send(self, messages: Mapping[int, Wire], group: str, seconds: float) -> list[int]:
        """Send one message to each node with such clients; return the clients whose
        nodes Flower does not know.
        """
        by_node: dict[int, dict[int, Wire]] = {}
        for client, message in messages.items():
            by_node.setdefault(self.nodes[client], {})[client] = message
        if not by_node:
            return []
        contents = {node: with_spec(to_content(some), self.spec) for node, some in by_node.items()}
        outgoing = [
            Message(content, node, MessageType.TRAIN, group_id=group, ttl=seconds)
            for node, content in contents.items()
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

    def receive(self, limit: Callable[[int], int]) -> Iterable[tuple[tuple[int, ...], Message]]:
        """Yield the answers since the last call, each with the clients of the message that it
        answers.

        `limit` says how many bytes the arrays of a client can have.
        """
        limits = {number: ROOM + sum(map(limit, some)) for number, some in self.waiting.items()}
        for number, message in self.inbox.pull(limits):
            brought = self.waiting.pop(number, None)
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
        """Return the messages that were lost long enough ago to be sent again."""
        now = time.monotonic()
        due = [client for client, (when, _) in self.lost.items() if when <= now]
        return {client: self.lost.pop(client)[1] for client in due}


@dataclass(frozen=True)
class RoundRules:
    """When a round ends, and when a run does."""

    rounds: int
    minimum: int  # updates below which a round is abandoned
    seconds: float  # that a round may take
    # updates that are enough; ask more clients than this, and slow ones are not waited for
    goal: int | None = None
    attempts: int = 3  # at the same round, before the run is given up
    patience: float = 60.0  # seconds to wait for clients that are not there


def play_round(
    link: Link, open_round: OpenRound, minimum: int, seconds: float, goal: int | None = None
) -> Closed:
    """Play one round over the grid until all have answered, enough have (`goal`), or
    the time is up.
    """
    end = time.monotonic() + seconds
    link.forget()
    asked = len(open_round.downloads)
    _send(link, open_round, open_round.downloads, seconds)
    while open_round.waiting and open_round.admitted < (goal or asked) and time.monotonic() < end:
        more: dict[int, Wire] = {}
        for clients, message in link.receive(open_round.limit):
            more |= _take_answers(open_round, clients, message)
        _send(link, open_round, more | link.due_again(), max(1.0, end - time.monotonic()))
        time.sleep(PAUSE if open_round.waiting and not more else 0)
    for client in link.revoked(open_round.downloads):
        open_round.drop(client, "revoked", "its key was taken out of server.toml during the round")
    return open_round.close(minimum)


def _send(link: Link, open_round: OpenRound, messages: Mapping[int, Wire], seconds: float) -> None:
    """Send what can be sent; the round goes on without clients whose nodes are gone."""
    reached = {client: message for client, message in messages.items() if client in link.nodes}
    unknown = link.send(reached, str(open_round.progress.state.round), seconds)
    for client in [*(messages.keys() - reached.keys()), *unknown]:
        open_round.refuse(client, "unreachable", "its node has left")


def _take_answers(
    open_round: OpenRound, clients: Sequence[int], message: Message
) -> dict[int, Wire]:
    """Hand a node's answer to the round; return what its clients are sent next, if anything."""
    try:
        if message.has_error():
            error = message.error
            raise Malformed(_reason(error.code), f"{error.code}: {error.reason}")
        limits = {client: open_round.limit(client, NPY_HEADER) for client in clients}
        answers = from_content(message.content, limits)
    except Malformed as problem:
        answers = dict.fromkeys(clients, problem)
    # whatever a client can think of; it must not cost the others their round
    except Exception as problem:
        text = f"it cannot be read: {type(problem).__name__}: {problem}"
        answers = dict.fromkeys(clients, Malformed("envelope", text))
    silence = Malformed("envelope", "the answer says nothing of this client")
    more: dict[int, Wire] = {}
    for client in clients:
        answer = answers.get(client, silence)
        if isinstance(answer, Malformed):
            open_round.refuse(client, answer.reason, answer.detail)
        elif (sent := open_round.receive(client, answer)) is not None:
            more[client] = sent
        elif client in open_round.waiting and (fresh := open_round.ask_again(client)) is not None:
            more[client] = fresh
    return more


def _reason(code: int) -> str:
    """Return the one word for an error of Flower's, or ours."""
    if code == UNUSABLE:
        return "envelope"
    return "no-answer" if code in UNANSWERED else "client-error"


def run_rounds(
    registry: Registry,
    side: ServerSide,
    rules: RoundRules,
    choose: Choose,
    progress: Progress,
    on_round: OnRound,
) -> Progress:
    """Play all rounds that are left. Abandoned ones are tried again, with the clients that `choose`
    names then.
    """
    link = Link.of(registry)
    attempt = 0
    while progress.state.round < rules.rounds:
        registry.look()
        clients, ask = choose(progress, attempt)
        least = min(rules.minimum, len(clients))
        if len(registry.nodes.keys() & {*clients}) < least:
            registry.wait(clients, least, rules.patience)
        registry.fix_claims(clients)
        open_round = OpenRound(side, progress, clients, ask)
        closed = play_round(link, open_round, rules.minimum, rules.seconds, rules.goal)
        on_round(closed)
        progress = closed.progress
        attempt = attempt + 1 if closed.abandoned else 0
        if attempt >= rules.attempts:
            raise _gave_up(closed, attempt)
    return progress


def _gave_up(closed: Closed, attempts: int) -> UserError:
    """Return the error for a round that was abandoned again and again."""
    refusals = closed.report.refusals[:3]
    reasons = "; ".join(f"client {r.client}: {r.reason}, {r.detail}" for r in refusals)
    number = closed.progress.state.round + 1
    often = count_of(attempts, "time")
    return UserError(
        f"round {number} was abandoned {often}: {closed.abandoned} ({reasons})",
        "see why clients were refused, or lower the minimum; then go on with the run",
    )


def server_app(
    begin: Begin,
    rules: RoundRules,
    choose: Choose,
    on_round: OnRound,
    clients: Sequence[int],
    *,
    enrolled: Callable[[], Enrolment] = Enrolment,
    labels: int = 1,
) -> ServerApp:
    """Return the app of a server: it waits for these clients and plays the rounds.
    `labels`: number in one example.
    """

    def main(grid: Grid, context: Context) -> None:
        registry = Registry(grid, enrolled, labels)
        registry.wait(clients, len(clients), rules.patience)
        side, progress = begin(context, registry)
        run_rounds(registry, side, rules, choose, progress, on_round)

    app = ServerApp()
    app.main()(main)
    return app
