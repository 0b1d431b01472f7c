"""Start Flower's SuperExec so that the token of an app is in no list of processes.

Whoever has the token can act as the server's app. Flower hands it to the app as a word of its
command, which every account of the machine can read (`ps`). Here it is in a file that has no name,
is in memory, and is handed over open.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

TOKEN, TOKEN_FILE = "--token", "--token-file"  # options of Flower's apps


def start_app(command: Sequence[str], **more: Any) -> subprocess.Popen[bytes]:
    """Start an app with its token in a file instead of its command."""
    if TOKEN not in command:
        return subprocess.Popen(command, **more)
    place = command.index(TOKEN)
    descriptor = os.memfd_create("token")
    try:
        os.write(descriptor, command[place + 1].encode())
        words = [TOKEN_FILE, f"/proc/self/fd/{descriptor}"]
        hidden = [*command[:place], *words, *command[place + 2 :]]
        return subprocess.Popen(hidden, pass_fds=(descriptor,), **more)
    finally:
        os.close(descriptor)


def main() -> None:
    """Run `flower-superexec` with the arguments of this process."""
    from flwr.supercore.cli import flower_superexec
    from flwr.supercore.superexec.executor import subprocess_executor

    executor: Any = subprocess_executor
    executor.subprocess = SimpleNamespace(Popen=start_app, DEVNULL=subprocess.DEVNULL)
    flower_superexec()


if __name__ == "__main__":
    main()
