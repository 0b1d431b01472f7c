"""A client's process in which everything is imported already; each message is worked on by a copy of it.

Flower starts a new Python for every message and client, which spends seconds on imports. The program that it starts
(`shim.py`, found on the path under the name of Flower's own) asks this process for a copy instead.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import struct
import sys
import traceback

from fedblocks.flower.shim import WARM, address


def serve() -> None:
    """Wait for requests of the same user, and answer each with a copy of this process."""
    from flwr.supernode.cli import flwr_clientapp

    import fedblocks.flower.deploy  # noqa: F401 - imported here so that copies need not

    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # copies that end leave nothing behind
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as door:
        door.bind(address(os.environ[WARM]))
        door.listen(16)
        while True:
            caller, _ = door.accept()
            if _same_user(caller) and os.fork() == 0:
                door.close()
                os._exit(_work(caller, flwr_clientapp))
            caller.close()


def _work(caller: socket.socket, program: object) -> int:
    """In the copy: do what Flower's program would do, and say how it ended."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    code = 1
    try:
        with caller.makefile("r") as request:
            sys.argv = ["flwr-clientapp", *json.loads(request.readline())]
        assert callable(program)
        code = int(program() or 0)
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except BaseException:
        traceback.print_exc()
    caller.sendall(bytes([code & 255]))
    return code & 255


def _same_user(caller: socket.socket) -> bool:
    size = struct.calcsize("3i")
    _, user, _ = struct.unpack("3i", caller.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size))
    return bool(user == os.getuid())


if __name__ == "__main__":
    serve()
