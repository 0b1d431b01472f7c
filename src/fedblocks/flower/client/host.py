"""A machine with clients at work: it starts their process, tells what becomes of it, and starts it again if it ends."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from fedblocks.core.errors import UserError
from fedblocks.flower.client.standing import Standing
from fedblocks.flower.hosts import launch
from fedblocks.flower.hosts.folders import ClientHost
from fedblocks.flower.hosts.process_group import ProcessGroup, ended_politely
from fedblocks.flower.keys.private_files import refuse_open

Tell = Callable[[str], None]
NAME = "client"
PROGRAM = ("-m", "fedblocks.flower.client.node")
TEND = 0.5  # seconds between two looks at the process


def start_client(crew: ProcessGroup, folder: Path, name: str = NAME, program: Sequence[str] = PROGRAM) -> None:
    """The process of one machine with clients."""
    crew.start(name, [sys.executable, *program, str(folder)], **launch.environment(folder))


def host_client(folder: Path, tell: Tell) -> None:
    """Run a machine with clients until Ctrl-C or SIGTERM; while the server is away or refuses it tries again."""
    launch.need_flower()
    folder = folder.resolve()
    host = ClientHost.read(folder)
    check_client(folder)
    with ended_politely(), ProcessGroup(folder / "logs", {}) as crew:
        try:
            tell(f"starting; the server is {host.server}")
            start_client(crew, folder)
            watch_client(crew, folder, tell)
        except KeyboardInterrupt:
            tell("stopping")


def check_client(folder: Path) -> None:
    """Say what is wrong with a client's key, or with the authority that it believes."""
    if not ClientHost.read(folder).insecure:
        from fedblocks.flower.keys import certificates as pki

        refuse_open(folder / "client.key", f"fedblocks federation rotate {folder}")
        pki.load_authority(folder / "ca.crt")


def watch_client(crew: ProcessGroup, folder: Path, tell: Tell) -> None:
    """Tell what is new, each thing once, and keep the process alive; ends with what it cannot go on from."""
    told: Standing | None = None
    while True:
        news = Standing.read(folder)
        if news is not None and news.process == crew.running[NAME].pid and news != told:
            if news.state == "failed":
                raise UserError(news.text, news.fix)
            if told is None:
                tell(news.holds)
            told = news
            crew.restarts = 0 if news.state == "connected" else crew.restarts
            tell(f"{news.text}; {news.fix}" if news.fix else news.text)
        for name in crew.revive():
            tell(f"{name} had ended and was started again")
        time.sleep(TEND)
