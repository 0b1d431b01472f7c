"""The process of a machine's clients: it takes messages from the server, and answers with what is
installed here.

No code from the server is run: what Flower calls an app is never asked for. Every message brings
the specification of its run; `client.toml` decides whether the clients take part.
"""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

import httpx
import torch
from flwr.app import Error, Message, MessageType
from flwr.common.constant import ErrorCode
from flwr.proto.message_pb2 import ObjectTree
from flwr.supercore.heartbeat import HeartbeatSender
from pydantic import ValidationError

from fedblocks.config.registry import kinds
from fedblocks.core.errors import UserError, count_of, nearest
from fedblocks.core.small_files import need_content
from fedblocks.engines.devices import find_device
from fedblocks.flower.client import app, prepare, side
from fedblocks.flower.client.causes import cause_of
from fedblocks.flower.client.excuses import excuse_for
from fedblocks.flower.client.fleet import Fleet, RunOverError, ends
from fedblocks.flower.client.lock import IN_USE, InUseError, alone
from fedblocks.flower.client.standing import Standing
from fedblocks.flower.hosts.folders import ClientHost
from fedblocks.flower.hosts.process_group import ended_politely
from fedblocks.flower.wire.messages import Malformed, TooLargeError
from fedblocks.flower.wire.readable import LOGGED, readable
from fedblocks.flower.wire.records import HELLO, spec_of
from fedblocks.flower.wire.run_spec import RunSpec

# seconds between two looks for a message: in a run, and when nothing has come for long
QUICK, IDLE = 0.25, 3.0
# seconds until a server that is away or refuses is tried again: at first, and in the end
RETRY, RARELY = 1.0, 15.0
ENVELOPE = 2**24  # bytes that a message may have beside the arrays of a model
# no answer, a refusal, or something that is not Flower's
LOST = (httpx.HTTPError, TooLargeError, ValueError)
threads_at_start = torch.get_num_threads()  # of the machine: no constant
log = logging.getLogger(__name__)


class Node:
    """The clients of a machine, connected to their server."""

    def __init__(self, folder: Path, holds: str = "") -> None:
        self.folder = folder
        self.holds = holds
        self.host = ClientHost.read(folder)
        self.fleet = Fleet(self.host, folder)
        before = Standing.read(folder)
        # Flower's number of this node, at first that of an earlier time
        self.number = before.node if before and not self.host.insecure else None
        self._said: set[str] = set()
        self._shown: set[str] = set()

    def run(self) -> None:
        """Connect, answer, and connect again, until somebody ends this process."""
        logging.getLogger(side.__name__).addHandler(Trouble(self.show_trouble))
        heart = HeartbeatSender(self._beat)
        try:
            while True:
                self._connect()
                if not heart.is_running:
                    heart.start()
                try:
                    self._answer_messages()
                except LOST as error:
                    self._tell_cause(error)
        finally:
            if heart.is_running:
                heart.stop()  # or it would call this client back to life
            with suppress(*LOST):
                if self.number is not None:
                    self.fleet.leave(self.number)

    def _connect(self) -> None:
        """Try until the server lets this client in: a key may be enrolled later, a
        server may come back.
        """
        pause = RETRY
        while True:
            try:
                self.number = self.fleet.enter(self.number)
                break
            except LOST as error:
                self._tell_cause(error)
            time.sleep(pause)
            pause = min(2 * pause, RARELY)
        self._said.clear()
        self._tell(Standing("connected", "connected; waiting for what the server asks for"))

    def _beat(self) -> bool:
        """Whether the server heard that this client lives; also while it trains."""
        try:
            return self.number is not None and self.fleet.beat(self.number)
        except LOST:
            return False

    def _tell_cause(self, error: Exception) -> None:
        cause = cause_of(error, self.host.server)
        self._tell(Standing("trying", cause.message, cause.fix))

    def _tell(self, news: Standing) -> None:
        """Write the state of the connection, and log it once."""
        news = Standing(news.state, readable(news.text, LOGGED), news.fix)
        whole = replace(news, node=self.number, process=os.getpid(), holds=self.holds)
        with suppress(OSError):  # a disk that is full is no reason to end
            whole.write(self.folder)
        self._warn_once(f"{news.text}{f'; {news.fix}' if news.fix else ''}")

    def show_trouble(self, text: str) -> None:
        """Show what went wrong on the terminal of whoever started this client, each text once."""
        text = readable(text, LOGGED)
        if text not in self._shown:
            news = Standing("connected", text, "", self.number, os.getpid(), self.holds)
            with suppress(OSError):  # that the disk is full, the host sees by itself
                news.write(self.folder)
        self._shown.add(text)

    def _warn_once(self, text: str) -> None:
        text = readable(text, LOGGED)
        if text not in self._said:
            log.warning("%s", text)
        self._said.add(text)

    def _answer_messages(self) -> None:
        assert self.number is not None
        last = time.monotonic()
        while True:
            received = self.fleet.next(self.number)
            if received is None:
                time.sleep(min(IDLE, max(QUICK, (time.monotonic() - last) / 10)))
            else:
                self._take(self.number, *received)
                last = time.monotonic()

    def _take(self, number: int, message: Message, tree: ObjectTree) -> None:
        """Fetch one message, do what it asks for, and send the answer; or drop it when
        nobody waits for it.
        """
        began = time.monotonic()
        try:
            reply = self._fetch_and_reply(number, message, tree)
            self.fleet.deliver(number, reply, time.monotonic() - began)
        except RunOverError:
            log.warning("run %d is over; its message was dropped", message.metadata.run_id)
        except httpx.TransportError:
            if time.time() < ends(message):
                raise
            run = message.metadata.run_id
            log.warning("a message of run %d was dropped, since its time was over", run)

    def _fetch_and_reply(self, number: int, message: Message, tree: ObjectTree) -> Message:
        try:
            most = ClientHost.read(self.folder).allow.bytes + ENVELOPE
            self.fleet.fetch(number, message, tree, most)
            return self.reply(message)
        except (RunOverError, httpx.HTTPError):
            raise
        except (Malformed, TooLargeError) as error:
            self._warn_once(f"refused: run {message.metadata.run_id}: {error}")
            return Message(Error(ErrorCode.UNKNOWN, f"refused: {error}"), reply_to=message)
        # whatever went wrong: the server is told, and the process lives on
        except Exception as error:
            log.exception("a message of run %d could not be answered", message.metadata.run_id)
            self.show_trouble(f"a message could not be answered: {error}")
            failure = Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, excuse_for(error))
            return Message(failure, reply_to=message)

    def reply(self, message: Message) -> Message:
        """Return what the clients here answer to a message."""
        spec = spec_of(message.content)
        match message.metadata.message_type:
            case kind if kind == HELLO:
                return app.hello(message, lambda: self._sides(spec))
            case kind if kind == MessageType.TRAIN:
                return app.work(message, self._sides(spec))
            case kind:
                raise Malformed(
                    "not-fedblocks", f'a fedblocks run sends nothing like "{kind[:40]}"'
                )

    def _sides(self, spec: str) -> app.Sides:
        """Return the clients here, ready for a run; if they cannot take part, log the
        reason once.
        """
        try:
            settings = need_content(self.folder / ClientHost.file(), "put it back")
            return _sides(self.folder, spec, settings)
        except (Malformed, UserError) as error:
            detail = f" ({error.__cause__})" if error.__cause__ else ""  # for this log alone
            self._warn_once(f"this client cannot take part: {error}{detail}")
            self.show_trouble(f"this client cannot take part: {error}")
            raise


# a run, and beside it an adaptation; what the owner changes counts from the next message
@lru_cache(maxsize=2)
def _sides(folder: Path, spec_json: str, settings: bytes) -> app.Sides:
    try:
        spec = RunSpec.model_validate_json(spec_json)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        detail = f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
        raise Malformed(
            "version-mismatch", f"the run specification is not of this version: {detail}"
        ) from error
    torch.set_num_threads(min(spec.threads or threads_at_start, os.cpu_count() or 1))
    return prepare.sides_at(folder, spec)


def check(folder: Path) -> str:
    """Say in a sentence what this machine holds; raise UserError if its configuration is wrong."""
    host = ClientHost.read(folder)
    methods = kinds()["method"]
    for name in host.allow.methods or ():
        if name not in methods:
            message = f'{folder / host.file()}: allow.methods: "{name}" is not installed'
            raise UserError(message, nearest(name, methods))
    try:
        find_device(host.device)
    except UserError as error:
        message = f"{folder / host.file()}: device: {error.message}"
        raise UserError(message, error.fix) from error
    data = prepare.data_of(host, folder)
    rows = sum(int(rows.sizes.sum()) for rows in data.parts.values())
    return f"client {', '.join(map(str, host.clients))}: {count_of(rows, 'example')}, kept here"


class Trouble(logging.Handler):
    """Hands on what clients say while they work."""

    def __init__(self, show: Callable[[str], None]) -> None:
        super().__init__(logging.WARNING)
        self._show = show

    def emit(self, record: logging.LogRecord) -> None:
        self._show(record.getMessage())


class Lines(logging.Formatter):
    """One line for each record; those of a traceback, which may quote a server, are set
    in and hold only text.
    """

    def format(self, record: logging.LogRecord) -> str:
        return "\n    ".join(readable(line, LOGGED) for line in super().format(record).splitlines())


def main(folder: Path) -> int:
    """Run until SIGTERM or Ctrl-C; return 1 if the process cannot begin."""
    logging.basicConfig(level=logging.WARNING)
    for handler in logging.getLogger().handlers:
        handler.setFormatter(Lines("%(asctime)s %(message)s"))
    number = before.node if (before := Standing.read(folder)) else None
    try:
        with ended_politely(), alone(folder):
            Node(folder, check(folder)).run()
    except KeyboardInterrupt:
        return 0
    except InUseError as error:  # what lies in the folder is the other's
        log.error("%s; %s", error.message, error.fix)
        return IN_USE
    except UserError as error:
        log.error("%s; %s", error.message, error.fix)
        Standing("failed", error.message, error.fix, number, os.getpid()).write(folder)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
