"""Flower's two apps around both sides of a round: one message a client and round, two where slots are on request."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from flwr.app import ConfigRecord, Context, Message, MessageType, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from pydantic import TypeAdapter, ValidationError

from fedblocks.core.errors import UserError
from fedblocks.flower.admission import Member
from fedblocks.flower.client import ClientSide
from fedblocks.flower.local import member_of
from fedblocks.flower.messages import Malformed, Wire
from fedblocks.flower.records import NPY_HEADER, from_content, to_content
from fedblocks.flower.rounds import OpenRound
from fedblocks.flower.server import Ask, Closed, Progress, ServerSide

HELLO = "query.hello"
PAUSE = 0.05  # seconds between two looks at what has come
_MEMBER = TypeAdapter(Member)

Choose = Callable[[int, int], Sequence[int]]  # (rounds done, attempts at this one) -> the clients to ask
OnRound = Callable[[Closed], None]
Begin = Callable[[Context, Mapping[int, Member]], tuple[ServerSide, Progress]]  # anew, or where a run stopped


def client_app(side_of: Callable[[Context], tuple[ClientSide, str]]) -> ClientApp:
    """The app of a client; given Flower's context it finds its own side, and the group that it belongs to."""

    def work(message: Message, context: Context) -> Message:
        side, _ = side_of(context)
        return Message(to_content(side.answer(from_content(message.content))), reply_to=message)

    def hello(message: Message, context: Context) -> Message:
        member = json.dumps(vars(member_of(*side_of(context))))
        return Message(RecordDict({"member": ConfigRecord({"json": member})}), reply_to=message)

    app = ClientApp()
    app.train()(work)
    app.query("hello")(hello)
    return app


@dataclass(frozen=True, eq=False)
class Link:
    """Messages to clients by their numbers, over Flower's grid."""

    grid: Grid
    nodes: Mapping[int, int]  # client -> Flower's node
    waiting: dict[str, int] = field(default_factory=dict)  # message -> client, for those without an answer yet

    def send(self, messages: Mapping[int, RecordDict], kind: str, group: str, seconds: float) -> None:
        found = [
            Message(content, dst_node_id=self.nodes[client], message_type=kind, group_id=group, ttl=seconds)
            for client, content in messages.items()
        ]
        self.waiting.update(zip(self.grid.push_messages(found), messages, strict=True))

    def come(self) -> Iterable[tuple[int, Message]]:
        """What has come since the last look; an answer is placed by the message that it answers."""
        for message in self.grid.pull_messages(list(self.waiting)):
            client = self.waiting.pop(message.metadata.reply_to_message_id, None)
            if client is not None:
                yield client, message


def enrolled(grid: Grid, nodes: Sequence[int], seconds: float, largest: int = 10**7) -> tuple[Link, dict[int, Member]]:
    """Ask nodes which clients they are; nodes that say nothing sensible are left out."""
    asked = Link(grid, dict(enumerate(nodes)))
    hello = RecordDict({"hello": ConfigRecord({})})
    asked.send(dict.fromkeys(asked.nodes, hello), HELLO, "hello", seconds)
    members: dict[int, Member] = {}
    places: dict[int, int] = {}
    end = time.monotonic() + seconds
    while len(places) < len(nodes) and asked.waiting and time.monotonic() < end:
        for place, message in asked.come():
            member = _member(message, largest)
            if member is not None and member.client not in members:
                members[member.client], places[member.client] = member, nodes[place]
        time.sleep(PAUSE if asked.waiting else 0)
    return Link(grid, places), members


def _member(message: Message, largest: int) -> Member | None:
    if message.has_error():
        return None
    try:
        member = _MEMBER.validate_json(message.content["member"]["json"], strict=True)
        return member if member.size <= largest else None
    except (KeyError, TypeError, ValidationError):
        return None


def play_round(link: Link, open_round: OpenRound, minimum: int, seconds: float, goal: int | None = None) -> Closed:
    """One round over the grid: it ends when all have answered, when enough have (`goal`), or when time is up."""
    group, end = str(open_round.progress.state.round), time.monotonic() + seconds
    link.waiting.clear()  # whatever an earlier round still brings comes too late
    reached = {c: m for c, m in open_round.downloads.items() if c in link.nodes}
    for client in open_round.downloads.keys() - reached.keys():
        open_round.refuse(client, "unreachable", "no node has said that it is this client")
    link.send({c: to_content(m) for c, m in reached.items()}, MessageType.TRAIN, group, seconds)
    while open_round.waiting and open_round.admitted < (goal or len(reached)) and time.monotonic() < end:
        more = {c: sent for c, message in link.come() if (sent := _taken(open_round, c, message)) is not None}
        link.send({c: to_content(m) for c, m in more.items()}, MessageType.TRAIN, group, seconds)
        time.sleep(PAUSE if open_round.waiting and not more else 0)
    return open_round.close(minimum)


def _taken(open_round: OpenRound, client: int, message: Message) -> Wire | None:
    """Hand an answer to the round; what the client is sent next, if anything."""
    if message.has_error():
        open_round.refuse(client, "client-error", f"{message.error.code}: {message.error.reason}")
        return None
    try:
        found = from_content(message.content, open_round.limit(client, NPY_HEADER))
    except Malformed as error:
        open_round.refuse(client, error.reason, error.detail)
        return None
    return open_round.receive(client, found)


@dataclass(frozen=True)
class Terms:
    """When rounds end, and when a run does."""

    rounds: int
    minimum: int  # updates below which a round is abandoned
    seconds: float  # that a round may take
    goal: int | None = None  # updates that are enough; ask more clients than this, and slow ones are not waited for
    attempts: int = 3  # at the same round, before the run is given up
    ask: Ask = Ask()  # noqa: RUF009 - frozen


def run_rounds(
    link: Link, side: ServerSide, terms: Terms, choose: Choose, progress: Progress, on_round: OnRound
) -> Progress:
    """All rounds that are left. Abandoned ones are tried again, with the clients that `choose` names then."""
    attempt = 0
    while progress.state.round < terms.rounds:
        asked = OpenRound(side, progress, choose(progress.state.round, attempt), terms.ask)
        closed = play_round(link, asked, terms.minimum, terms.seconds, terms.goal)
        on_round(closed)
        progress, attempt = closed.progress, attempt + 1 if closed.abandoned else 0
        if attempt >= terms.attempts:
            told = "; ".join(f"client {r.client}: {r.reason}, {r.detail}" for r in closed.report.refusals[:3])
            message = f"round {progress.state.round + 1} was abandoned {attempt} times: {closed.abandoned} ({told})"
            raise UserError(message, "see why clients were refused, or lower the minimum; then go on with the run")
    return progress


def server_app(begin: Begin, terms: Terms, choose: Choose, on_round: OnRound, nodes: int) -> ServerApp:
    """The app of the server: wait for this many nodes, learn who they are, and go through the rounds."""

    def main(grid: Grid, context: Context) -> None:
        link, members = enrolled(grid, awaited(grid, nodes, terms.seconds), terms.seconds)
        side, progress = begin(context, members)
        run_rounds(link, side, terms, choose, progress, on_round)

    app = ServerApp()
    app.main()(main)
    return app


def awaited(grid: Grid, count: int, seconds: float) -> list[int]:
    """The nodes that are there, once they are as many as wanted or the time is up."""
    end = time.monotonic() + seconds
    while len(found := sorted(grid.get_node_ids())) < count:
        if time.monotonic() > end:
            raise UserError(f"{len(found)} of {count} clients are connected after {seconds:g} s", "start the others")
        time.sleep(PAUSE)
    return found
