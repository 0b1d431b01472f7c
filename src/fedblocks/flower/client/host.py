"""The host of a machine's clients: it starts their process, reports on it, and starts it again if
it ends.

This process stays small: it imports neither torch nor Flower, which the clients' process (`node`)
loads.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from fedblocks.core.errors import UserError
from fedblocks.core.full_disks import free_on, is_full
from fedblocks.flower.client.lock import IN_USE, InUseError, refuse_held
from fedblocks.flower.client.standing import Standing
from fedblocks.flower.hosts import launch
from fedblocks.flower.hosts.folders import ClientHost
from fedblocks.flower.hosts.process_group import ProcessGroup, ended_politely
from fedblocks.flower.keys.private_files import read_secret

Tell = Callable[[str], None]
NAME = "client"
PROGRAM = ("-m", "fedblocks.flower.client.node")
TEND = 0.5  # seconds between two looks at the process


def start_client(
    processes: ProcessGroup, folder: Path, name: str = NAME, program: Sequence[str] = PROGRAM
) -> None:
    """Start the process of a machine's clients."""
    processes.start(name, [sys.executable, *program, str(folder)], **launch.environment(folder))


def host_client(folder: Path, tell: Tell) -> None:
    """Run the clients of a machine until Ctrl-C or SIGTERM; they try again while the
    server is away or refuses them.
    """
    launch.need_flower()
    folder = folder.resolve()
    host = ClientHost.read(folder)
    check_client(folder)
    refuse_held(folder)
    with ended_politely(), ProcessGroup(folder / "logs", {}) as processes:
        try:
            tell(f"starting; the server is {host.server}")
            start_client(processes, folder)
            watch_client(processes, folder, tell)
        except KeyboardInterrupt:
            tell("stopping")


def check_client(folder: Path) -> None:
    """Refuse a client's key, or its authority's certificate, if something is wrong with it."""
    if not ClientHost.read(folder).insecure:
        from fedblocks.flower.keys import certificate_checks as checks

        read_secret(folder / "client.key", f"fedblocks federation rotate {folder}")
        checks.load_authority(folder / "ca.crt")


def watch_client(processes: ProcessGroup, folder: Path, tell: Tell) -> None:
    """Report news of the process, each once, and keep it alive; raise what it cannot go on from."""
    last: Standing | None = None
    was_full = False
    while True:
        if (now_full := is_full(folder)) and not was_full:
            what = f"the disk of {folder} is full ({free_on(folder)})"
            tell(f"warning: {what}: this client cannot take part in a round; make room")
        was_full = now_full
        if processes.running[NAME].poll() == IN_USE:
            raise InUseError(folder)
        news = Standing.read(folder)
        if news is not None and news.process == processes.running[NAME].pid and news != last:
            if news.state == "failed":
                raise UserError(news.text, news.fix)
            if last is None:
                tell(news.holds)
            last = news
            processes.restarts = 0 if news.state == "connected" else processes.restarts
            tell(f"{news.text}; {news.fix}" if news.fix else news.text)
        for name in processes.revive():
            tell(f"{name} had ended and was started again")
        processes.trim_logs()
        time.sleep(TEND)
