"""To whom the other end of a connection on this machine belongs: the kernel knows.

Its table of all connections takes some milliseconds to read, however few they are, and a server
looks with every request; so the kernel is asked for the one connection (sock_diag(7)), and the
table is read where it has no answer.
"""

from __future__ import annotations

import socket
import struct
from pathlib import Path

Address = tuple[str, int]

TABLES = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
MAPPED = "0000000000000000FFFF0000"  # an IPv4 address in the table of IPv6
ESTABLISHED = 1
SOCK_DIAG = 4  # the netlink protocol
BY_FAMILY = 20  # type of question and answer
REQUEST = 1
ANY = 0xFFFFFFFF  # instead of a socket's cookie

HEADER = struct.Struct("=IHHII")  # length, type, flags, number, sender
QUESTION = struct.Struct("=BBBxI")  # family, protocol, extensions, states
ANSWER = struct.Struct("=BB2x48x12xII")  # family, state, ports and addresses, queues, user, inode


def owner_of(local: Address, remote: Address) -> int | None:
    """Return the user of a socket of this machine, or None if nobody holds it.

    Sockets that were closed show user 0 until they are forgotten, so only those that are open
    count.
    """
    try:
        ends = socket.inet_aton(local[0]), socket.inet_aton(remote[0])
    except OSError:
        return None  # no IPv4 address: the SuperLink listens on none of those
    try:
        state, user, inode = _ask(struct.pack("!HH", local[1], remote[1]), *ends)
    except (OSError, struct.error):  # no such socket, or a kernel that cannot be asked
        return owner_in_tables(local, remote)
    return user if state == ESTABLISHED and inode else None


def _ask(ports: bytes, local: bytes, remote: bytes) -> tuple[int, int, int]:
    """Ask the kernel for state, user and inode of one socket."""
    addresses = local.ljust(16, b"\0") + remote.ljust(16, b"\0")
    which = ports + addresses + struct.pack("=III", 0, ANY, ANY)  # on any network interface
    body = QUESTION.pack(socket.AF_INET, socket.IPPROTO_TCP, 0, 1 << ESTABLISHED) + which
    head = HEADER.pack(HEADER.size + len(body), BY_FAMILY, REQUEST, 0, 0)
    with socket.socket(socket.AF_NETLINK, socket.SOCK_DGRAM, SOCK_DIAG) as kernel:
        kernel.send(head + body)
        reply = kernel.recv(4096)
    if HEADER.unpack_from(reply)[1] != BY_FAMILY:
        raise OSError("no such socket")
    _, state, user, inode = ANSWER.unpack_from(reply, HEADER.size)
    return state, user, inode


def owner_in_tables(local: Address, remote: Address) -> int | None:
    """Look a socket's user up in the kernel's tables of all connections."""
    wanted = [(prefix + _written(local), prefix + _written(remote)) for prefix in ("", MAPPED)]
    for table, pair in zip(TABLES, wanted):
        for line in table.read_text().splitlines()[1:] if table.exists() else []:
            _, own, other, state, _, _, _, user, _, inode, *_ = line.split()
            if (own, other) == pair and int(state, 16) == ESTABLISHED and inode != "0":
                return int(user)
    return None


def _written(address: Address) -> str:
    """Write an address as the kernel's table does."""
    (number,) = struct.unpack("=I", socket.inet_aton(address[0]))
    return f"{number:08X}:{address[1]:04X}"
