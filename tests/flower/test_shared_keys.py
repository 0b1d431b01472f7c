"""A key that is used in two places at once is noticed; a client that was started again is not taken
for two.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("cryptography", reason="comes with the extra flower")

from fedblocks.flower.gateway.key_uses import ALIVE, EVERY, MOST, PROCESS, KeyUses
from fedblocks.flower.hosts.key_watch import KeyWatch
from fedblocks.flower.hosts.process_group import ProcessGroup
from fedblocks.flower.keys.shared_keys import FILE, LASTS, SharedKey, read_shared, write_shared

A, B, C = (letter * 16 for letter in (b"a", b"b", b"c"))
Request = tuple[float, bytes, str]  # when, by which process, from where


def reports_of(requests: Sequence[Request], name: str = "one") -> list[Mapping[str, SharedKey]]:
    """What is reported while requests by one key come in."""
    now = 0.0
    reports: list[Mapping[str, SharedKey]] = []
    uses = KeyUses(lambda shared: reports.append({**shared}), lambda: now)
    for when, process, address in requests:
        now = when
        uses.note(name, {PROCESS: process} if process else {}, address)
    return reports


def test_two_processes_that_take_turns_are_reported_with_their_addresses() -> None:
    reports = reports_of([(0, A, "10.0.0.1"), (1, B, "10.0.0.2"), (2, A, "10.0.0.1")])
    assert [*reports[0]] == ["one"]
    shared = reports[0]["one"]
    assert (shared.processes, shared.addresses) == (2, ["10.0.0.1", "10.0.0.2"])
    assert abs(shared.when - time.time()) < 60


@pytest.mark.parametrize(
    "requests",
    [
        [(0, A, "x"), (1, A, "x"), (2, A, "y")],  # one process, also from another address
        [(0, A, "x"), (1, B, "x"), (2, B, "x"), (3, C, "x"), (4, C, "x")],  # started again
        # the first came back when the second had long been silent
        [(0, A, "x"), (1, B, "x"), (1 + ALIVE, A, "x")],
        [(0, b"", "x"), (1, b"", "x"), (2, b"", "x")],  # Flower's own client has no number
        [(0, b"no number", "x"), (1, b"other words", "x"), (2, b"no number", "x")],
    ],
)
def test_what_one_client_does_is_not_reported(requests: list[Request]) -> None:
    assert reports_of(requests) == []


def test_a_process_that_has_ended_is_not_counted() -> None:
    requests = [(0, C, "z"), (1, A, "x"), (2, B, "y"), (3, A, "x")]
    (report,) = reports_of(requests)
    assert (report["one"].processes, report["one"].addresses) == (2, ["x", "y"])


def test_clients_without_a_number_are_told_apart_by_their_address() -> None:
    (report,) = reports_of([(0, b"", "x"), (1, b"", "y"), (2, b"", "x")])
    assert report["one"].addresses == ["x", "y"]


def test_two_that_go_on_are_reported_now_and_then() -> None:
    turns = [(float(second), (A, B)[second % 2], "x") for second in range(31)]
    # from the third request on, every ten seconds: at 2, 12 and 22 s
    assert len(reports_of(turns)) == 30 // EVERY
    assert all(report["one"].processes == 2 for report in reports_of(turns))


def test_a_client_that_makes_up_numbers_fills_no_memory() -> None:
    uses = KeyUses(lambda shared: None, lambda: 0.0)
    for number in range(1000):
        uses.note("one", {PROCESS: b"%016x" % number}, "x")
    assert len(uses._uses["one"]) == MOST


def test_a_note_is_read_while_it_is_news_and_nonsense_is_not(tmp_path: Path) -> None:
    assert read_shared(tmp_path) == {}
    now = SharedKey(2, ["x"], time.time())
    write_shared(tmp_path, {"one": now, "old": SharedKey(2, ["x"], time.time() - LASTS - 1)})
    assert read_shared(tmp_path) == {"one": now}
    for text in ("", "[]", '{"one": 3}', '{"one": {"when": 1}}'):
        (tmp_path / FILE).write_text(text)
        assert read_shared(tmp_path) == {}


def test_a_shared_key_is_told_once_with_what_to_do(tmp_path: Path) -> None:
    said: list[str] = []
    watch = KeyWatch(tmp_path, said.append)
    processes: Any = ProcessGroup(tmp_path / "logs", {})
    for _ in range(3):
        write_shared(tmp_path, {"one": SharedKey(2, ["10.0.0.1", "10.0.0.2"], time.time())})
        watch.follow(processes)
    assert said == [
        "warning: the key one is used by 2 clients at once (10.0.0.1, 10.0.0.2): stop all but one, "
        "and let every other machine make a key of its own (fedblocks federation join); if you do "
        f"not know the others, the key was stolen: fedblocks federation revoke {tmp_path} one"
    ]
