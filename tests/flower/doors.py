"""A gateway as a process, something in the SuperLink's place that writes down what
reaches it, and raw requests.
"""

from __future__ import annotations

import socket
import ssl
import sys
import threading
from base64 import b64encode
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import tomli_w
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from fedblocks.flower.hosts import launch
from fedblocks.flower.hosts.folders import ServerHost
from fedblocks.flower.hosts.process_group import ProcessGroup
from fedblocks.flower.hosts.setup import set_up
from fedblocks.flower.keys.client_keys import public_key

WORKER = str(Path(__file__).with_name("gateway_worker.py"))
GOOD = b"/v1/fleet/pull-messages"
Headers = dict[bytes, bytes]


@dataclass
class Seen:
    """A request that got through."""

    line: str
    headers: dict[str, str]
    body: bytes


class Recorder(ThreadingHTTPServer):
    """In the SuperLink's place: every request is noted, and answered with `good`."""

    daemon_threads = True

    def __init__(self, folder: Path, secured: bool) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.seen: list[Seen] = []
        self.waits = threading.Event()  # until it is set nothing is answered
        self.waits.set()
        if secured:
            tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            tls.load_cert_chain(folder / "server.crt", folder / "server.key")
            self.socket = tls.wrap_socket(self.socket, server_side=True)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Connections that break off are no news."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Recorder

    def parse_request(self) -> bool:
        well = super().parse_request()
        body = self.rfile.read(int(self.headers.get("content-length", 0))) if well else b""
        headers = {name.lower(): value for name, value in self.headers.items()} if well else {}
        self.server.seen.append(Seen(self.requestline, headers, body))
        self.server.waits.wait(30)
        self.wfile.write(
            b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\ncontent-type: "
            b"application/protobuf\r\n\r\ngood"
        )
        return False

    def log_message(self, format: str, *words: object) -> None:
        pass


@dataclass
class Door:
    """A federation of two clients whose server is a gateway with a recorder behind it."""

    base: Path
    limits: Mapping[str, Any] = field(default_factory=dict)
    secured: bool = True  # TLS
    mode: str = ""  # of the gateway's process, without TLS

    def __post_init__(self) -> None:
        self.server = self.base / "server"
        set_up(self.base, "127.0.0.1", {"one": [0], "two": [1]}, launch.free_port())
        self.recorder = Recorder(self.server, self.secured)
        self.write(
            inner_port=self.recorder.server_port,
            **({"limits": dict(self.limits)} if self.limits else {}),
        )
        self.host = ServerHost.read(self.server)

    def write(self, **changes: Any) -> None:
        table = ServerHost.read(self.server).model_dump(mode="json", exclude_none=True)
        (self.server / "server.toml").write_text(tomli_w.dumps({**table, **changes}))

    @contextmanager
    def open(self) -> Iterator[Door]:
        threading.Thread(target=self.recorder.serve_forever, daemon=True).start()
        with ProcessGroup(self.base / "logs", {}) as processes:
            words = [WORKER, self.mode] if self.mode else ["-m", "fedblocks.flower.gateway.gateway"]
            self.process = processes.start("gateway", [sys.executable, *words, str(self.server)])
            launch.until(lambda: launch.is_open(self.host), 60, processes.check, "the gateway")
            yield self
            processes.check()  # it is still there
        self.recorder.shutdown()
        self.recorder.server_close()

    def log(self) -> str:
        return (self.base / "logs" / "gateway.log").read_text()

    def connect(self, seconds: float = 10.0) -> socket.socket:
        plain = socket.create_connection(("127.0.0.1", self.host.port), timeout=seconds)
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if not self.secured:
            return plain
        trust = ssl.create_default_context(cafile=str(self.server / "ca.crt"))
        return trust.wrap_socket(plain, server_hostname="127.0.0.1", suppress_ragged_eofs=True)

    def ask(self, content: bytes) -> bytes:
        """Everything that is answered to some bytes on a connection of their own."""
        with self.connect() as connection:
            connection.sendall(content)
            return answered(connection)

    def signed(self, name: str = "one", ahead: float = 0.0) -> Headers:
        """The headers of Flower's client."""
        key = serialization.load_ssh_private_key(
            (self.base / name / "client.key").read_bytes(), None
        )
        assert isinstance(key, ec.EllipticCurvePrivateKey)
        at = (datetime.now(UTC) + timedelta(seconds=ahead)).isoformat().encode()
        signature = b64encode(key.sign(at, ec.ECDSA(hashes.SHA256())))
        public = b64encode(public_key(self.server / "clients" / f"{name}.pub"))
        return {b"flwr-public-key": public, b"flwr-timestamp": at, b"flwr-signature": signature}

    def peak(self) -> int:
        """Bytes of memory that the gateway has had at most."""
        return peak_bytes(self.process.pid)


def peak_bytes(process: int | str = "self") -> int:
    """Memory that a process has had at most, since it began or since `forget_peak`."""
    status = Path(f"/proc/{process}/status").read_text()
    return 1024 * int(status.partition("VmHWM:")[2].split()[0])


def forget_peak() -> None:
    """Count the most memory of this process anew."""
    Path("/proc/self/clear_refs").write_text("5")


def answered(connection: socket.socket, most: int = 1000) -> bytes:
    """Some answers, or those until one that says that it is the last."""
    pieces, rest, is_last = [], b"", False
    try:
        while len(pieces) < most and not is_last:
            while b"\r\n\r\n" not in rest:
                rest += _some(connection)
            head, _, rest = rest.partition(b"\r\n\r\n")
            length = int(head.lower().partition(b"content-length: ")[2].split()[0])
            while len(rest) < length:
                rest += _some(connection)
            is_last = b"connection: close" in head
            pieces.append(head + b"\r\n\r\n" + rest[:length])
            rest = rest[length:]
    except ConnectionError:
        pass
    return b"".join([*pieces, rest])


def _some(connection: socket.socket) -> bytes:
    if piece := connection.recv(65536):
        return piece
    raise ConnectionError("closed")


def everything(connection: socket.socket) -> bytes:
    """What comes until the other side closes."""
    pieces = []
    try:
        while piece := connection.recv(65536):
            pieces.append(piece)
    except ConnectionError:
        pass
    return b"".join(pieces)


def request(target: bytes, headers: Headers, body: bytes = b"", **more: bytes) -> bytes:
    """A request as Flower's client makes it, but for what is said otherwise."""
    about = {
        b"Host": b"server",
        b"Content-Length": b"%d" % len(body),
        b"Content-Type": b"application/protobuf",
    }
    about |= headers | {name.replace("_", "-").encode(): value for name, value in more.items()}
    lines = [
        b"POST " + target + b" HTTP/1.1",
        *(name + b": " + value for name, value in about.items()),
    ]
    return b"\r\n".join([*lines, b"", body])
