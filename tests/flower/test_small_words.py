"""Addresses, keys, heads of requests and logs, read as people and programs write them."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from fedblocks.core.blocks import Shared
from fedblocks.core.errors import UserError
from fedblocks.flower.gateway.requests import HEAD, parse_head
from fedblocks.flower.hosts.folders import ClientHost, ServerHost, is_loopback
from fedblocks.flower.keys.client_keys import make_client, public_key
from fedblocks.flower.keys.public_keys import fingerprint, read_public
from fedblocks.flower.wire.messages import WEIGHTS, array_name
from fedblocks.flower.wire.uploads import fill_copies, upload_arrays

from .key_folders import Federation


@pytest.mark.parametrize(
    ("host", "own"),
    [("127.0.0.1", True), ("127.9.9.9", True), ("[::1]", True), ("::1", True), ("localhost", True),
     ("0.0.0.0", False), ("10.0.0.1", False), ("[fe80::1]", False), ("example.org", False)],
)  # fmt: skip
def test_an_address_of_this_machine_is_one_that_no_other_can_reach(host: str, own: bool) -> None:
    assert is_loopback(host) is own


def test_a_public_key_may_have_blanks_and_lines_around_it(tmp_path: Path) -> None:
    make_client(tmp_path / "own" / "key", tmp_path / "key.pub")
    content = (tmp_path / "key.pub").read_bytes()
    padded = b"\n  " + content + b" \n"
    assert fingerprint(read_public(padded, "here")) == fingerprint(read_public(content, "here"))
    plain = public_key(tmp_path / "key.pub")
    (tmp_path / "key.pub").write_bytes(padded)
    assert public_key(tmp_path / "key.pub") == plain and plain.startswith(b"-----BEGIN PUBLIC KEY")


GOOD = {"Host": "a", "Content-Length": "12"}


def head(line: str = "POST /v1/fleet/pull-messages HTTP/1.1", **fields: str) -> Any:
    every = {**GOOD, **{name.replace("_", "-"): value for name, value in fields.items()}}
    return parse_head(
        "\r\n".join([line, *(f"{k}:{v}" for k, v in every.items())]).encode() + b"\r\n\r\n"
    )


def test_the_head_of_a_request_is_read_with_blanks_around_values() -> None:
    request = head(Host="  a  ", Content_Length=" 12 ", Connection=" Close ")
    assert request.path == b"/v1/fleet/pull-messages" and request.length == 12 and request.closing
    assert request.headers[b"host"] == b"a" and not head().closing
    assert not head(Connection="keep-alive").closing and HEAD == 16 * 1024
    assert head(Content_Type="application/protobuf", X="x" * 1024) is not None


@pytest.mark.parametrize(
    "fields",
    [{"Content_Length": ""}, {"Content_Length": "-1"}, {"Content_Length": "1" * 13},
     {"Transfer_Encoding": "chunked"}, {"Upgrade": "x"}, {"Expect": "x"}, {"TE": "x"},
     {"Content_Type": "text/plain"}, {"Content_Type": "application/protobuf; x"},
     {"Accept": "x" * 1025}, {"X": "x" * 1025}, {"X": "\t"},
     {"Trailer": "x"}, {"Proxy_Connection": "x"}, {"Connection": "other"},
     {"line": "GET /v1 HTTP/1.1"}, {"line": "POST /v1 HTTP/1.0"}, {"line": "POST v1 HTTP/1.1"}],
)  # fmt: skip
def test_a_head_that_clients_do_not_send_is_refused(fields: dict[str, str]) -> None:
    assert head(**fields) is None


def test_a_head_without_a_host_or_with_a_field_twice_is_refused() -> None:
    line = b"POST /v1/fleet/pull-messages HTTP/1.1\r\n"
    assert parse_head(line + b"content-length: 1\r\n\r\n") is None
    assert parse_head(line + b"host: a\r\nHost: b\r\ncontent-length: 1\r\n\r\n") is None


@pytest.mark.parametrize("decided", [None, torch.tensor([[0.5]], dtype=torch.float32)])
def test_weights_travel_in_double_precision(decided: torch.Tensor | None) -> None:
    block = Shared(part=None)  # type: ignore[arg-type]
    method: Any = SimpleNamespace(blocks=lambda: {"body": block}, statistics="average")
    weights = {} if decided is None else {"body": decided}
    trained: Any = SimpleNamespace(
        weights=weights, wanted={}, blocks={"body": {"w": torch.ones(1, 2)}}
    )
    arrays, names = upload_arrays(method, trained, {}, 7.0)
    row = arrays[array_name(WEIGHTS, "body")]
    assert row.dtype == "float64" and row.tolist() == ([7.0] if decided is None else [0.5])
    assert names == (() if decided is None else ("body",))


def test_copies_that_came_take_their_places_among_those_that_were_sent() -> None:
    sent, some = {"w": torch.zeros(3, 1)}, {"w": torch.ones(1, 1)}
    filled = fill_copies(sent, some, torch.tensor([False, True, False]))
    assert filled["w"].flatten().tolist() == [0, 1, 0] and sent["w"].sum() == 0
    assert fill_copies(sent, some, torch.tensor(True)) is some
    assert fill_copies(sent, {}, torch.tensor([False, False, True]))["w"].sum() == 0


def test_the_folder_that_is_meant_is_named(tmp_path: Path) -> None:
    federation = Federation(tmp_path)
    client = federation.joined("one")
    meant: list[tuple[Path, type[ServerHost | ClientHost], str]] = [
        (tmp_path / "f", ServerHost, f"name the server's folder: {federation.server}"),
        (
            client,
            ServerHost,
            "this is the folder of a client; name one that `federation init` made",
        ),
        (federation.server, ClientHost, "this is the folder of the server; name one that `fed"),
        (tmp_path, ClientHost, "name a folder that `fedblocks federation join` made"),
    ]
    for folder, host, said in meant:
        with pytest.raises(UserError) as refused:
            host.read(folder)
        assert refused.value.fix.startswith(said)
