"""Who is there: nodes come and go, say which clients they hold, and are believed only with the key of that client."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from flwr.app import ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid
from pydantic import TypeAdapter, ValidationError

from fedblocks.core.errors import UserError
from fedblocks.flower.admission import Member
from fedblocks.flower.records import with_terms
from fedblocks.flower.rounds import readable

HELLO = "query.hello"
PAUSE = 0.5  # seconds between two looks at what has come; more of them keep a SuperLink from its work
LOOK = 1.0  # seconds between two looks at which nodes there are
AGAIN = 90.0  # seconds after which a node that did not answer, or could not, is asked again
UNANSWERED = {3, 4, 5}  # Flower's errors: the message is gone, its answer is, its node is
_MEMBERS = TypeAdapter(list[Member])

Tell = Callable[[str], None]


@dataclass(eq=False)
class Roll:
    """The clients that are connected, with their nodes; kept up to date by `look`."""

    grid: Grid
    keys: Mapping[bytes, Sequence[int]] | None = None  # public key -> clients that it stands for; None: anybody's word
    terms: str = ""  # what nodes are told of the run
    largest: int = 10**7  # examples that a client may say it has
    tell: Tell = lambda text: None
    members: dict[int, Member] = field(default_factory=dict)
    nodes: dict[int, int] = field(default_factory=dict)  # client -> Flower's node
    refused: dict[int, str] = field(default_factory=dict)  # node -> why it is not believed, or cannot take part
    _asked: dict[str, int] = field(default_factory=dict)  # message -> node
    _when: dict[int, float] = field(default_factory=dict)  # node -> when it was asked
    _public: dict[int, bytes] = field(default_factory=dict)  # node -> its key
    _looked: float = float("-inf")

    def look(self) -> None:
        """Ask nodes that are new who they are, take answers, and cross out nodes that left."""
        if time.monotonic() - self._looked > LOOK:
            self._looked = time.monotonic()
            self._greet({node.node_id: bytes(node.public_key) for node in self.grid.get_nodes()})
        for message in self.grid.pull_messages(list(self._asked)) if self._asked else []:
            node = self._asked.pop(message.metadata.reply_to_message_id, None)
            if node is not None:
                self._hear(node, message)

    def _greet(self, online: Mapping[int, bytes]) -> None:
        for client in [c for c, node in self.nodes.items() if node not in online]:
            del self.nodes[client]
            self.tell(f"client {client} has left")
        now, known = time.monotonic(), {*self.nodes.values()}
        new = [n for n in online if n not in known and now - self._when.get(n, float("-inf")) > AGAIN]
        self._public = dict(online)
        question = with_terms(RecordDict({"hello": ConfigRecord({})}), self.terms)
        messages = [Message(question, n, HELLO, group_id="hello", ttl=AGAIN) for n in new]
        self._asked.update(zip(self.grid.push_messages(messages), new, strict=True) if new else ())
        self._when |= dict.fromkeys(new, now)

    def _hear(self, node: int, message: Message) -> None:
        """Believe a node that says what it may say."""
        if message.has_error() and message.error.code in UNANSWERED:
            del self._when[node]  # ask it anew as soon as it is back
            return
        try:
            said = self._said(message, node)
            for member in said:
                if self.nodes.get(member.client, node) != node:
                    raise ValueError(f"client {member.client} is there already")
                self.members[member.client], self.nodes[member.client] = member, node
            self.refused.pop(node, None)
            self.tell(f"{_named(said)} there, with {sum(member.size for member in said)} training examples")
        except ValueError as error:
            reason = readable(str(error))
            if self.refused.get(node) != reason:
                self.tell(f"a node was refused: {reason}")
            self.refused[node] = reason

    def _said(self, message: Message, node: int) -> list[Member]:
        if message.has_error():
            raise ValueError(f"client-error: {message.error.reason}")
        try:
            told: dict[str, Any] = json.loads(str(message.content["hello"]["json"]))
            if "reason" in told:
                raise ValueError(f"{told['reason']}: {told.get('detail', '')}")
            members = _MEMBERS.validate_json(json.dumps(told["members"]), strict=True)
            if not members:
                raise TypeError("nobody")
        except (KeyError, TypeError, ValidationError) as error:
            raise ValueError("envelope: it does not say who it is") from error
        for member in members:
            if member.size > self.largest:
                raise ValueError(f"too-large: client {member.client} says that it has {member.size} examples")
            if self.keys is not None and member.client not in self.keys.get(self._public.get(node, b""), ()):
                raise ValueError(f"wrong-key: its key is not that of client {member.client}")
        return members

    def wait(self, clients: Sequence[int], least: int, seconds: float) -> None:
        """Until all of these clients are there, or, when the time is up, at least some."""
        end, told = time.monotonic() + seconds, -1
        self.look()
        while (here := len(self.nodes.keys() & {*clients})) < len(clients):
            if time.monotonic() > end and here >= least:
                return
            if time.monotonic() > end:
                why = "; ".join(self.refused.values())
                message = f"{here} of {len(clients)} clients are connected after {seconds:g} s"
                raise UserError(f"{message} ({why})" if why else message, "start the others")
            if here != told:
                told = here
                self.tell(f"waiting for clients: {here} of {len(clients)} are there")
            time.sleep(PAUSE)
            self.look()


def _named(members: Sequence[Member]) -> str:
    """The clients of one node in a few words."""
    if len(members) == 1:
        return f"client {members[0].client} is"
    first = ", ".join(str(member.client) for member in members[:3])
    return f"clients {first}{f' and {len(members) - 3} more' if len(members) > 3 else ''} are"
