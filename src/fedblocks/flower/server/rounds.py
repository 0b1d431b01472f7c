"""One round on the server: what each client is sent, which answers count, and their aggregation."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from fedblocks.core.admission import Refusal, cap_groups
from fedblocks.core.aggregate import aggregate
from fedblocks.core.server import Cohort
from fedblocks.core.uploads import Uploads
from fedblocks.engines.close_round import Report
from fedblocks.flower.server.reasons import FROM_CLIENTS, HARMLESS, NOT_REACHED
from fedblocks.flower.server.score_bounds import find_absurd_losses, find_excesses
from fedblocks.flower.server.sending import (
    first_downloads,
    gather_for,
    requested_slots,
    second_download,
)
from fedblocks.flower.server.side import Ask, Closed, EvaluatedClients, Progress, ServerSide
from fedblocks.flower.wire.admission import (
    SLACK,
    Expected,
    admit_request,
    admit_upload,
    check_counts,
    check_envelope,
)
from fedblocks.flower.wire.downloads import payload_of
from fedblocks.flower.wire.messages import (
    ApologyHeader,
    Counts,
    Header,
    Malformed,
    Picture,
    RequestHeader,
    UploadHeader,
    Wire,
    header_of,
    wire,
)
from fedblocks.flower.wire.readable import readable
from fedblocks.flower.wire.uploads import join_uploads


class OpenRound:
    """A round under way: the first answer of a client counts; all others are noted and change
    nothing.
    """

    def __init__(
        self, side: ServerSide, progress: Progress, clients: Sequence[int], ask: Ask | None = None
    ) -> None:
        self.side = side
        self.progress = progress
        self.ask = ask or Ask()
        self.report = Report(sorted(clients), {}, {}, [], {})
        self.downloads: dict[int, Wire] = {}  # to be sent
        self.ignored: list[Refusal] = []
        self._asked_again: set[int] = set()
        # client -> bytes by block of the message that it has not answered yet
        self._unanswered: dict[int, dict[str, int]] = {}
        lacking = {client: side.lacking(client) for client in clients}
        self.waiting = {client for client, why in lacking.items() if not why}
        self._expected: dict[int, Expected] = {}
        self._requests: dict[int, RequestHeader] = {}
        self._uploads: dict[int, Uploads] = {}
        self._counts: dict[str, dict[int, Counts]] = {}
        self._pictures: dict[str, dict[int, Picture]] = {}
        for client in sorted({*clients} - self.waiting):
            self.report.refusals.append(side.refusal_of(client, lacking[client]))
        for group in side.methods:
            if ids := [c for c in sorted(self.waiting) if side.members[c].group == group]:
                self._send(group, ids)

    def _send(self, group: str, ids: list[int]) -> None:
        ids = self._readers(group, ids)
        if not ids:
            return
        for first in first_downloads(self.side, self.progress, self.ask, group, ids):
            self._expected[first.client] = first.expected
            self.downloads[first.client] = first.message
            self._unanswered[first.client] = first.bytes_down

    def _readers(self, group: str, ids: list[int]) -> list[int]:
        """Return the clients whose tags the method can use; a tag is a client's word, and costs
        that client alone.
        """
        if not self.side.methods[group].tags:
            return ids
        for client in ids:
            try:
                gather_for(self.side, self.progress.state, group, [client])
            except Exception as error:
                self.refuse(client, "bad-tag", str(error).partition("\n")[0])
        return [client for client in ids if client in self.waiting]

    @property
    def admitted(self) -> int:
        """Number of clients whose answers are used."""
        return len(self._uploads)

    def limit(self, client: int, each: int = 0) -> int:
        """Return the most bytes that a client's answer can have, with `each` more for each
        array.
        """
        expected = self._expected[client]
        return int(SLACK * expected.limit()) + each * expected.arrays

    def receive(self, client: int, message: Wire) -> Wire | None:
        """Take an answer; return what the client is sent next, if anything. Nothing that a client
        sends raises.
        """
        try:
            header = header_of(message)
            if client not in self._expected:
                raise Malformed("unknown-client", "it was not asked in this round")
            self._count_down(client)
            check_envelope(header, self._expected[client].envelope)
            if client not in self.waiting:
                raise Malformed("duplicate", "it has answered already")
        except Malformed as error:
            self._turn_away(client, error)
            return None
        except Exception as error:
            problem = f"it cannot be read: {type(error).__name__}: {error}"
            self._turn_away(client, Malformed("envelope", problem))
            return None
        try:
            return self._take(client, header, message)
        except Malformed as error:
            self.refuse(client, error.reason, error.detail)
        # a gap in the checks must cost this client its round, not all clients theirs
        except Exception as error:
            self.refuse(client, "server-error", f"{type(error).__name__}: {error}")
        return None

    def ask_again(self, client: int) -> Wire | None:
        """Return a fresh download for a client that answered something else; the second time,
        refuse the client.

        On a network an answer is tied to the message that it answers. If what came is of another
        round or attempt, the right answer to that message will never come, and waiting for it would
        hold everybody until the deadline.
        """
        if client in self._asked_again:
            last = next(ignored for ignored in reversed(self.ignored) if ignored.client == client)
            self.refuse(client, last.reason, f"{last.detail}; it was asked twice")
            return None
        self._asked_again.add(client)
        self._requests.pop(client, None)
        fresh = {"nonce": secrets.token_hex(8)}
        expected = self._expected[client]
        envelope = expected.envelope.model_copy(update=fresh)
        self._expected[client] = replace(expected, envelope=envelope)
        sent = self.downloads[client]
        self.downloads[client] = wire(header_of(sent).model_copy(update=fresh), sent.arrays)
        return self.downloads[client]

    def _turn_away(self, client: int, error: Malformed) -> None:
        """Ignore old messages and copies; refuse a client whose first answer cannot be read."""
        if error.reason in HARMLESS or client not in self.waiting:
            self.ignored.append(Refusal(client, error.reason, readable(error.detail)))
        else:
            self.refuse(client, error.reason, error.detail)

    def _take(self, client: int, header: Header, message: Wire) -> Wire | None:
        expected = self._expected[client]
        match header:
            case RequestHeader() if client not in self._requests:
                admit_request(header, expected)
                self._requests[client] = header
                more, bytes_down = second_download(header, expected, self.progress.state)
                self._unanswered[client] = bytes_down
                return more
            case UploadHeader():
                self._admit(client, header, message, expected)
            case ApologyHeader():
                known = header.reason in FROM_CLIENTS
                raise Malformed(header.reason if known else "client-error", header.detail)
            case _:
                raise Malformed("envelope", f'"{header.kind}" was not to be sent now')
        return None

    def _admit(self, client: int, header: UploadHeader, message: Wire, expected: Expected) -> None:
        """Take the scores, then the update. Scores of the models as they were sent belong to the
        round before: they stay if the update of this one is refused.
        """
        self._check_scores(header, expected)
        local = {name: counts for name, counts in header.counts.items() if "/" not in name}
        self._note_scores(
            client, {n: c for n, c in header.counts.items() if n not in local}, header.pictures
        )
        if self.ask.train:
            wanted = requested_slots(expected, self._requests.get(client))
            uploads = admit_upload(header, message, expected, wanted)
            for name in uploads:
                self.report.bytes_up.setdefault(name, {})[client] = payload_of(message, name)
        elif message.arrays:
            raise Malformed("names", "nothing but scores was asked for")
        else:
            uploads = {}
        self._note_scores(client, local, {})
        self._uploads[client] = uploads
        self.waiting.discard(client)

    def _check_scores(self, header: UploadHeader, expected: Expected) -> None:
        if unknown := header.counts.keys() - self.ask.views(expected.method):
            raise Malformed("envelope", f'nobody asked for the score "{min(unknown)[:80]}"')
        for name, counts in header.counts.items():
            check_counts(name, counts, len(self.side.task.measured))
        if header.pictures and not self.ask.evaluate:
            raise Malformed("envelope", "nobody asked for pictures of a model")

    def _note_scores(
        self, client: int, counts: Mapping[str, Counts], pictures: Mapping[str, Picture]
    ) -> None:
        for name, own in counts.items():
            self._counts.setdefault(name, {})[client] = own
        for name, numbers in pictures.items():
            self._pictures.setdefault(readable(name), {})[client] = numbers

    def refuse(self, client: int, reason: str, detail: str) -> None:
        """Go on without a client: it sent something wrong, failed, or cannot be reached."""
        if client in self.waiting:
            self.waiting.discard(client)
            if reason not in NOT_REACHED:
                self._count_down(client)
            self.report.refusals.append(Refusal(client, reason, readable(detail)))
            self.side.refused[client] = f"{reason}: {readable(detail)}"

    def drop(self, client: int, reason: str, detail: str) -> None:
        """Go on without a client, though its answer was admitted."""
        if self._uploads.pop(client, None) is not None:
            self.waiting.add(client)
        tables: list[dict[str, dict[int, Any]]]
        tables = [self._counts, self._pictures, self.report.bytes_up]
        for by_client in (by_client for table in tables for by_client in table.values()):
            by_client.pop(client, None)
        self.refuse(client, reason, detail)

    def close(self, minimum: int = 1) -> Closed:
        """End the round with what has come; below the minimum it is as if it had never begun."""
        for client in sorted(self.waiting):
            self.refuse(client, "no-answer", "nothing came before the round was closed")
        self._leave_out_excesses()
        local = {name: by_client for name, by_client in self._counts.items() if "/" not in name}
        self.report.counts.update(local)
        counts = {name: by_client for name, by_client in self._counts.items() if name not in local}
        evaluated = EvaluatedClients(counts, self._pictures)
        lost = {r.client for r in self.report.refusals if r.reason == "lost-state"}
        kept = {client: done for client, done in self.progress.kept.items() if client not in lost}
        before = replace(self.progress, kept=kept) if lost else self.progress
        if not self.ask.train:
            return Closed(before, self.report, evaluated, self.ignored)
        if self.admitted < max(1, minimum):
            shortage = f"{self.admitted} of at least {max(1, minimum)} updates could be used"
            return Closed(before, self.report, evaluated, self.ignored, abandoned=shortage)
        return Closed(self._aggregate(kept), self.report, evaluated, self.ignored)

    def _leave_out_excesses(self) -> None:
        """Leave out scores on more labels than a client can have, and with losses beyond all
        measure; its update is bounded already.
        """
        sizes = {client: member.size for client, member in self.side.members.items()}
        for name, by_client in self._counts.items():
            excesses = find_excesses(by_client, sizes) | find_absurd_losses(by_client)
            for client, excess in excesses.items():
                del by_client[client]
                detail = f'the score "{name}": {excess}'
                self.ignored.append(Refusal(client, "too-large-claim", detail))

    def _aggregate(self, kept: dict[int, int]) -> Progress:
        state, members = self.progress.state, self.side.members
        groups: dict[str, Uploads] = {}
        cohorts: dict[str, Cohort] = {}
        for group in self.side.methods:
            if ids := sorted(c for c in self._uploads if members[c].group == group):
                groups[group] = join_uploads([self._uploads[c] for c in ids])
                cohorts[group] = self.side.cohort(ids, state.round)
        after = aggregate(self.side.methods, state, cap_groups(groups, self.side.share), cohorts)
        return Progress(after, kept | dict.fromkeys(self._uploads, after.round))

    def _count_down(self, client: int) -> None:
        """Count what a client was sent last: whatever it answers, it got that."""
        for name, number in self._unanswered.pop(client, {}).items():
            self.report.bytes_down.setdefault(name, {})[client] = number
