"""What a client reads of a download, which bases it refuses, and what it says of its clock."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from email.utils import format_datetime
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
import torch

from fedblocks.core.errors import UserError
from fedblocks.flower.client import causes
from fedblocks.flower.client.policy import Allow
from fedblocks.flower.client.receiving import Receiver
from fedblocks.flower.client.side import ClientSide
from fedblocks.flower.wire.messages import Malformed, Wire, arrays_of

SPECS: Any = {"p": {"w": (torch.float32, (2,))}, "q": {"w": (torch.float32, ())}}
CPU = torch.device("cpu")
POOLS: Any = {"p": SimpleNamespace(size=3), "q": SimpleNamespace(size=2)}


def header(**slots: tuple[int, ...]) -> Any:
    return SimpleNamespace(slots=slots)


def test_slots_that_came_take_their_places_and_the_others_are_zero() -> None:
    sent = {"p": {"w": torch.tensor([[1.0, 2.0], [3.0, 4.0]])}}
    message = Wire("", arrays_of(sent))
    pools = Receiver(SPECS, CPU).read_slots(header(p=(0, 2), q=()), message, POOLS)
    assert pools["p"]["w"].tolist() == [[1, 2], [0, 0], [3, 4]]
    assert pools["q"]["w"].tolist() == [0, 0]


@pytest.mark.parametrize(
    ("slots", "reason"),
    [({"p": (0,)}, "names"), ({"p": (0,), "q": (), "z": ()}, "names"),
     ({"p": (3,), "q": ()}, "shape"), ({"p": (-1,), "q": ()}, "shape"), ({"p": (0,), "q": ()}, "")],
)  # fmt: skip
def test_slots_are_those_of_the_pools(slots: Any, reason: str) -> None:
    message = Wire("", arrays_of({"p": {"w": torch.zeros(1, 2)}}))
    own = Receiver(SPECS, CPU)
    if reason:
        with pytest.raises(Malformed) as refused:
            own.read_slots(header(**slots), message, POOLS)
        assert refused.value.reason == reason
    else:
        assert own.read_slots(header(**slots), message, POOLS)["p"]["w"].sum() == 0


def test_a_download_names_blocks_of_the_method_alone() -> None:
    sent = {"p": {"w": torch.ones(2, 2)}, "q": {"w": torch.tensor(5.0)}}
    download: Any = SimpleNamespace(copies={"p": 2, "q": 0})
    blocks = Receiver(SPECS, CPU).read_download(download, Wire("", arrays_of(sent)))
    assert blocks["p"]["w"].shape == (2, 2) and blocks["q"]["w"].item() == 5.0
    download.copies |= {"z": 0, "odd": 0}
    with pytest.raises(Malformed, match='the method has no block "odd"'):
        Receiver(SPECS, CPU).read_download(download, Wire("", {}))


@pytest.mark.parametrize("changed", ["a", "m", "z", None])
def test_the_first_base_that_differs_is_named(changed: str | None) -> None:
    wanted = dict.fromkeys(["z", "m", "b", "a"], "hash")
    own: Any = SimpleNamespace(_frozen=dict(wanted))
    if changed is None:
        ClientSide._check_frozen(own, wanted)
        return
    own._frozen |= {"z": "other", "m" if changed == "z" else changed: "other"}
    if changed == "z":
        own._frozen["m"] = "hash"
    with pytest.raises(Malformed) as refused:
        ClientSide._check_frozen(own, wanted)
    assert refused.value.reason == "frozen-mismatch" and f'"{changed}"' in refused.value.detail
    assert refused.value.detail.endswith("load the same weights")
    del own._frozen["a"]
    with pytest.raises(Malformed, match='"a"'):
        ClientSide._check_frozen(own, wanted)


NOW = datetime(2026, 1, 1, 12, tzinfo=UTC).timestamp()


def answer(code: int, content: Any = None, date: float | None = None) -> httpx.Response:
    when = None if date is None else format_datetime(datetime.fromtimestamp(date, UTC), usegmt=True)
    headers = {} if when is None else {"date": when}
    return httpx.Response(code, headers=headers, text=json.dumps(content))


@pytest.mark.parametrize(
    ("response", "said"),
    [
        (answer(401, date=NOW - 6), "the clock of this machine is 6 s ahead of the server's"),
        (answer(401, date=NOW + 6), "the clock of this machine is 6 s behind the server's"),
        (answer(401, date=NOW - 5), "the server does not know the key"),
        (answer(401, date=NOW + 5), "the server does not know the key"),
        (answer(401), "the server does not know the key"),
        (answer(403, date=NOW - 60), "the server does not know the key"),
        (answer(401, {"reason": "clock", "server_time": NOW - 9}, NOW), "the clock of this machine "
         "is 9 s ahead"),
        (answer(401, {"reason": "clock", "server_time": "2026-01-01T12:00:30+00:00"}),
         "the clock of this machine is 30 s behind"),
        (answer(401, {"reason": "other", "server_time": 0}, NOW), "the server does not know the"),
        (answer(401, {"reason": "clock"}, NOW - 7), "the clock of this machine is 7 s ahead"),
        (answer(412), "the server says that a client with this key is connected already"),
        (answer(404), "the server does not know the key"),
        (answer(500), "a:1 cannot serve at the moment (it answers 500)"),
        (answer(503, {"reason": "quota"}), "a:1 cannot serve at the moment (this client has sent"),
        (answer(504, {"reason": "odd"}), "a:1 cannot serve at the moment (it answers 504)"),
        (answer(501), "a:1 answers 501"), (answer(400), "a:1 answers 400"),
    ],
)  # fmt: skip
def test_an_answer_says_what_is_wrong_and_a_clock_only_beyond_five_seconds(
    response: httpx.Response, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("flwr")
    monkeypatch.setattr(causes, "time", SimpleNamespace(time=lambda: NOW))
    request = httpx.Request("POST", "http://a:1")
    error = httpx.HTTPStatusError("no", request=request, response=response)
    cause = causes.cause_of(error, "a:1")
    assert isinstance(cause, UserError) and cause.message.startswith(said) and cause.fix


def test_an_error_has_at_most_120_letters_and_at_least_its_kind() -> None:
    text = causes.cause_of(httpx.ConnectError("[Errno -2] " + "x" * 121), "a:1").message
    assert text == f"a:1 does not answer ({'x' * 120})"
    assert causes.cause_of(httpx.ReadTimeout(""), "a:1").message.endswith("(ReadTimeout)")
    said = "a:1 gives an answer that this client does not understand: odd"
    assert causes.cause_of(ValueError("odd"), "a:1").message == said


def test_an_owner_allows_methods_by_name_and_models_by_size() -> None:
    assert Allow().runs("any") and Allow().bytes == 2 * 10**9
    few = Allow(methods=("a",), largest="1KiB")
    assert (few.runs("a"), few.runs("b"), few.bytes) == (True, False, 1024)
    assert not Allow(methods=()).runs("a")
    with pytest.raises(ValueError, match="largest"):
        Allow(largest="much")
