"""What Flower starts for a message to a client: it asks the warm process for a copy of itself, and waits for its end.

It runs without site-packages, so it imports the standard library alone.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import time

WARM = "FEDBLOCKS_WARM"  # the name under which the warm process listens
PATIENCE = 60.0  # seconds for it to import everything


def address(name: str) -> str:
    """A socket that is no file."""
    return f"\0fedblocks-{name}"


def main() -> int:
    """The exit code of the copy."""
    end = time.monotonic() + PATIENCE
    while True:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as line:
            try:
                line.connect(address(os.environ[WARM]))
            except OSError:
                if time.monotonic() > end:
                    print("the warm process of this client does not answer", file=sys.stderr)
                    return 1
                time.sleep(0.05)
                continue
            line.sendall(json.dumps(sys.argv[1:]).encode() + b"\n")
            answer = line.recv(1)
            return answer[0] if answer else 1


if __name__ == "__main__":
    sys.exit(main())
