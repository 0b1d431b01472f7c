"""The registry of connected clients: nodes come and go, and may speak only for the
clients whose key they have.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import httpx
from pydantic import TypeAdapter

from fedblocks.core.errors import UserError, count_of
from fedblocks.flower.server.enrolment import Enrolment
from fedblocks.flower.server.naming import name_clients, name_members
from fedblocks.flower.server.pulling import ROOM, UNUSABLE, Inbox, refuse_lasting
from fedblocks.flower.wire.admission import Member
from fedblocks.flower.wire.messages import Malformed
from fedblocks.flower.wire.readable import readable
from fedblocks.flower.wire.records import hello_answer, hello_message

if TYPE_CHECKING:
    from flwr.app import Message
    from flwr.serverapp import Grid

# seconds between two looks at what has come; more of them keep a SuperLink from its work
PAUSE = 0.5
LOOK = 1.0  # seconds between two looks at which nodes there are
AGAIN = 90.0  # seconds after which a node that did not answer, or could not, is asked again
UNANSWERED = {3, 4, 5}  # Flower's errors: the message is gone, its answer is, its node is
_MEMBERS = TypeAdapter(list[Member])

Tell = Callable[[str], None]


@dataclass(eq=False)
class Registry:
    """The clients that are connected, with their nodes; kept up to date by `look`."""

    grid: Grid
    # read at every look: keys come and go during a run
    enrolled: Callable[[], Enrolment] = Enrolment
    labels: int = 1  # of one example
    spec: str = ""  # the run specification, as JSON
    tell: Tell = lambda text: None
    # client -> its examples, for as long as the run lasts
    claims: dict[int, int] = field(default_factory=dict)
    members: dict[int, Member] = field(default_factory=dict)
    nodes: dict[int, int] = field(default_factory=dict)  # client -> Flower's node
    # node -> why it was refused, or cannot take part
    refused: dict[int, str] = field(default_factory=dict)
    _inbox: Inbox = field(init=False)
    _enrolment: Enrolment | None = None
    # node -> what it said, if it may speak for them
    _heard: dict[int, list[Member]] = field(default_factory=dict)
    _asked: dict[str, int] = field(default_factory=dict)  # message -> node
    _when: dict[int, float] = field(default_factory=dict)  # node -> when it was asked
    _public: dict[int, bytes] = field(default_factory=dict)  # node -> its key, of those online
    _since: dict[int, str] = field(default_factory=dict)  # node -> when it was activated
    _looked: float = float("-inf")

    def __post_init__(self) -> None:
        self._inbox = Inbox(self.grid)

    def look(self) -> None:
        """Ask new nodes who their clients are, take answers, and drop nodes that left
        or lost their key.
        """
        if time.monotonic() - self._looked > LOOK:
            self._looked = time.monotonic()
            self._read_nodes()
            self._read_enrolment()
            self._cross_out()
            self._greet()
        for asked, message in self._inbox.pull(dict.fromkeys(self._asked, ROOM)):
            node = self._asked.pop(asked, None)
            if node is not None:
                self._hear(node, message)
        self._take_in()

    def _read_nodes(self) -> None:
        """Read who is online; a node that was activated again is a new process, which does not
        know what the old one was asked.
        """
        nodes = [*self.grid.get_nodes()]
        self._public = {node.node_id: bytes(node.public_key) for node in nodes}
        since = {node.node_id: node.last_activated_at for node in nodes}
        for node in [*self._when]:
            if self._since.get(node) != since.get(node):
                del self._when[node]
        self._since = since

    def _read_enrolment(self) -> None:
        """Read the enrolment again; after a change, refused nodes are asked again."""
        before = self._enrolment
        self._enrolment = self.enrolled()
        if before is not None and before != self._enrolment:
            for node in self.refused:
                self._when.pop(node, None)

    def _cross_out(self) -> None:
        for client, node in [*self.nodes.items()]:
            if node not in self._public:
                del self.nodes[client]
                self.tell(f"client {client} has left")
        for node, members in [*self._heard.items()]:
            if node in self._public and (wrong := self._not_enrolled(node, members)):
                self._refuse(node, wrong)
                del self._heard[node]

    def _greet(self) -> None:
        now = time.monotonic()
        known = {*self.nodes.values()}
        unknown = [node for node in self._public if node not in known]
        new = [node for node in unknown if now - self._when.get(node, float("-inf")) > AGAIN]
        messages = [hello_message(node, self.spec, AGAIN) for node in new]
        asked = dict(zip(self._push(messages), new, strict=False))  # none if the SuperLink failed
        self._asked = {m: node for m, node in self._asked.items() if node not in new} | asked
        self._when |= dict.fromkeys(asked.values(), now)

    def _push(self, messages: list[Message]) -> list[str]:
        try:
            return list(self.grid.push_messages(messages)) if messages else []
        except httpx.HTTPStatusError as error:
            refuse_lasting(error)
            return []

    def _hear(self, node: int, message: Message) -> None:
        """Note what a node says, if it may say it."""
        if message.has_error() and message.error.code in UNANSWERED:
            self._when.pop(node, None)  # ask it anew as soon as it is back
            return
        try:
            self._heard[node] = self._read(message, node)
        except Malformed as error:
            self._heard.pop(node, None)
            self._refuse(node, str(error))
        # whatever a client can think of; it must not cost the others their run
        except Exception as error:
            self._heard.pop(node, None)
            self._refuse(node, f"envelope: it does not say who it is ({type(error).__name__})")

    def _refuse(self, node: int, reason: str) -> None:
        """Go on without a node; each kind of reason is reported once."""
        before = self.refused.get(node, "")
        self.refused[node] = readable(reason)
        for client in [c for c, its in self.nodes.items() if its == node]:
            del self.nodes[client], self.members[client]
        if before.partition(":")[0] != self.refused[node].partition(":")[0]:
            self.tell(f"a node was refused: {self.refused[node]}")

    def _take_in(self) -> None:
        """Let nodes take part whose claims agree with those of all others; this changes
        as clients come.
        """
        everybody = [(node, member) for node, members in self._heard.items() for member in members]
        claims = {member.client: member.size for _, member in everybody}
        nodes = {member.client: node for node, member in everybody}
        excesses = (self._enrolment or Enrolment()).excesses(claims, nodes)
        for node, members in [*self._heard.items()]:
            if wrong := [m.client for m in members if m.client in excesses]:
                self._refuse(node, f"too-large-claim: client {wrong[0]}: {excesses[wrong[0]]}")
            elif node in self._public and any(self.nodes.get(m.client) != node for m in members):
                self._enter(node, members)

    def _enter(self, node: int, members: Sequence[Member]) -> None:
        if taken := [m.client for m in members if self.nodes.get(m.client, node) != node]:
            del self._heard[node]
            self._refuse(node, f"duplicate: client {taken[0]} is there already")
            return
        for member in members:
            self.members[member.client] = member
            self.nodes[member.client] = node
        self.refused.pop(node, None)
        examples = sum(member.size for member in members)
        self.tell(f"{name_members(members)} there, with {count_of(examples, 'training example')}")

    def _read(self, message: Message, node: int) -> list[Member]:
        """Return the clients that a node says it holds; raise Malformed where it says
        what is wrong.
        """
        if message.has_error():
            reason = "envelope" if message.error.code == UNUSABLE else "client-error"
            raise Malformed(reason, message.error.reason or "it does not say why")
        answer = hello_answer(message.content)
        if "reason" in answer:
            raise Malformed(str(answer["reason"]), str(answer.get("detail", "")))
        members = _MEMBERS.validate_json(json.dumps(answer["members"]), strict=True)
        if not members:
            raise Malformed("envelope", "it does not say who it is")
        if wrong := self._not_enrolled(node, members) or self._wrong_claim(members):
            raise Malformed(*wrong.split(": ", 1))
        return members

    def _not_enrolled(self, node: int, members: Sequence[Member]) -> str:
        """Say why a node may not speak for these clients; empty if it may."""
        enrolment = self._enrolment or Enrolment()
        key = self._public.get(node, b"")
        foreign = [m.client for m in members if not enrolment.knows(key, m.client)]
        if foreign and enrolment.keys is not None and key not in enrolment.keys:
            return (
                f"not-enrolled: the key of client {foreign[0]} is not in server.toml; once it "
                f"is, it is taken in"
            )
        return f"wrong-key: its key is not that of client {foreign[0]}" if foreign else ""

    def _wrong_claim(self, members: Sequence[Member]) -> str:
        """Say what is wrong with a claim by itself; empty if nothing is."""
        for member in members:
            fixed = self.claims.get(member.client, member.size)
            most = max(1, member.size * self.labels)
            if member.size != fixed:
                return (
                    f"changed-claim: client {member.client} now claims "
                    f"{count_of(member.size, 'example')}, in this run {fixed}"
                )
            if member.limit > most:
                return (
                    f"too-large-claim: client {member.client} claims {member.limit:g} labels, "
                    f"and can have {most}"
                )
        return ""

    def turned_away(self, client: int) -> str:
        """Say why the node with a client's key was refused, as `reason: detail`; empty if it was
        not, or is not there.
        """
        keys = (self._enrolment or Enrolment()).keys or {}
        refused = ((self._public.get(node, b""), why) for node, why in self.refused.items())
        return next((why for key, why in refused if client in keys.get(key, ())), "")

    def revoked(self, clients: Iterable[int]) -> list[int]:
        """Return those of these clients whose key is no longer that of an enrolled
        client, by the files as they are.
        """
        self._read_enrolment()
        enrolment = self._enrolment or Enrolment()
        here = [
            (client, self._public.get(self.nodes[client], b""))
            for client in clients
            if client in self.nodes
        ]
        return [client for client, key in here if not enrolment.knows(key, client)]

    def fix_claims(self, clients: Iterable[int]) -> None:
        """Fix the number of examples of these clients for the rest of the run."""
        for client in self.nodes.keys() & {*clients}:
            self.claims.setdefault(client, self.members[client].size)

    def wait(self, clients: Sequence[int], least: int, seconds: float) -> None:
        """Wait until all of these clients are connected; after `seconds`, `least` of
        them are enough.
        """
        end = time.monotonic() + seconds
        reported = -1
        self.look()
        while missing := sorted({*clients} - self.nodes.keys()):
            here = len(clients) - len(missing)
            if time.monotonic() > end and here >= least:
                late = f"{name_clients(missing)}, not there after {seconds:g} s"
                self.tell(f"going on without {late}; who comes later joins")
                return
            if time.monotonic() > end:
                raise UserError(*self._too_few(clients, missing, least, seconds))
            if here != reported:
                reported = here
                there = f"{here} of {len(clients)} are there"
                self.tell(f"waiting for clients: {there}, {name_clients(missing)} missing")
            time.sleep(PAUSE)
            self.look()

    def _too_few(
        self, clients: Sequence[int], missing: Sequence[int], least: int, seconds: float
    ) -> tuple[str, str]:
        why = f" ({'; '.join(self.refused.values())})" if self.refused else ""
        number = len(clients) - len(missing)
        here = f"{number} of {count_of(len(clients), 'client')} connected after {seconds:g} s"
        needed = f"at least {least} are needed, {name_clients(missing)} missing"
        return f"{here}, {needed}{why}", self._fix_for(missing)

    def _fix_for(self, missing: Sequence[int]) -> str:
        """Say what to do about clients that are missing: some may be connected, and refused."""
        refused = [client for client in missing if self.turned_away(client)]
        absent = [client for client in missing if client not in refused]
        if self.refused and not refused:
            return "remove the reason for which nodes were refused, and start the others"
        parts = [f"start {name_clients(absent)}"] * bool(absent)
        if refused:
            verb = "is" if len(refused) == 1 else "are"
            reason = "remove the reason there, or in server.toml"
            parts.append(f"{name_clients(refused)} {verb} connected and refused: {reason}")
        return "; ".join(parts)
