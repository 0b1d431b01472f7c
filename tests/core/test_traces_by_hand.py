"""Traces of who is there, round by round."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from fedblocks.core.errors import DataError
from fedblocks.core.samplers import MOST_ROUNDS, SizeSampler, TraceSampler, _read_trace, _round_in

NAMES = [f"client-{number}" for number in range(20)]


def hash_of(content: Any) -> str:
    return sha256(repr(content).encode()).hexdigest()


def test_the_hash_of_a_trace_is_that_of_its_clients_in_the_order_of_their_names(
    tmp_path: Path,
) -> None:
    path = tmp_path / "trace.csv"
    rows = [f"1,{name}" for name in reversed(NAMES)] + ["3,b", "3,a"]
    path.write_text("round,client\n" + "\n".join(rows))
    assert TraceSampler(path=str(path)).content_hash == hash_of([sorted(NAMES), [], ["a", "b"]])
    listed = TraceSampler(rounds=[[1, 0], ["a"]])  # type: ignore[arg-type]
    assert listed.content_hash == hash_of(((1, 0), ("a",)))


def test_a_trace_begins_anew_after_its_last_round_and_nobody_is_drawn_who_is_not_there() -> None:
    trace = TraceSampler(rounds=((0, 2, 3), ("bob",)))
    names = ("ann", "bob", "eve", "joe")
    assert trace.numbers(1, names) == trace.numbers(3, names) == {0, 2, 3}
    assert trace.numbers(2, names) == {1}

    def draw(round: int, count: int) -> list[int]:
        who = SimpleNamespace(
            ids=[1, 2, 3], round=round, names=names, count=count, draw=np.random.default_rng(0)
        )
        return trace(who)  # type: ignore[arg-type]

    assert sorted(draw(1, 5)) == [2, 3] and len(draw(1, 1)) == 1 and draw(2, 5) == [1]


def test_columns_of_a_trace_may_have_blanks_and_others_beside_them(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text("\ufeff round , note, client \n 1 , x, ann \n2,y,bob\n")
    assert _read_trace(path) == [(1, "ann"), (2, "bob")]
    for text, said in [
        ("round,name\n1,a", 'has no column "client"'),
        ("client\na", 'has no column "round"'),
        ("round,client\n", "has no rows"),
        ("", 'has no column "round"'),
        ("round,client\n1,a\nx,b", 'line 3 of the trace .* "x" is no round'),
    ]:
        path.write_text(text)
        with pytest.raises(DataError, match=said):
            _read_trace(path)


@pytest.mark.parametrize("text", ["1", "007", str(MOST_ROUNDS)])
def test_rounds_count_from_one(text: str) -> None:
    assert _round_in(Path("a"), 2, text) == int(text)


@pytest.mark.parametrize("text", ["0", "-1", "1.0", "", "٣", str(MOST_ROUNDS + 1), "000000001"])
def test_what_is_no_round_is_refused(text: str) -> None:
    with pytest.raises(DataError, match="is no round"):
        _round_in(Path("a"), 2, text)


def test_a_client_who_is_not_in_the_data_is_refused_in_whatever_round() -> None:
    trace = TraceSampler(rounds=((0,), ("eve",)))
    trace.check_names(("ann", "eve"))
    with pytest.raises(DataError, match=r"the trace: .*eve"):
        trace.check_names(("ann", "bob"))


def test_clients_are_drawn_by_size_and_those_without_rows_never() -> None:
    def draw(sizes: list[int], count: int, seed: int = 0) -> list[int]:
        who = SimpleNamespace(
            ids=list(range(3, 3 + len(sizes))), count=count, sizes=np.array([7, 7, 7, *sizes]),
            draw=np.random.default_rng(seed),
        )  # fmt: skip
        return SizeSampler()(who)  # type: ignore[arg-type]

    assert sorted(draw([1, 0, 1, 5], 9)) == [3, 5, 6] and len(draw([1, 0, 1, 5], 2)) == 2
    often = [draw([1, 9], 1, seed)[0] for seed in range(300)].count(4)
    assert 240 < often < 295  # nine of ten times
