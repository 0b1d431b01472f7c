"""Messages that strangers made are refused with a reason, in bounded time and memory, or read."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'fedblocks[flower]'")

from .decoders import Decoder
from .session import apart, check, fuzz, keep
from .wire import EXPECTED, decoders_of_messages

RESULTS = Path(__file__).parents[2] / "results" / "fuzz-messages.json"
KNOWN = decoders_of_messages()


@pytest.mark.parametrize("decoder", KNOWN.values(), ids=[*KNOWN])
def test_whole_messages_are_read(decoder: Decoder) -> None:
    for sample in decoder.samples:
        decoder.read(sample)


@pytest.mark.parametrize("name", KNOWN)
def test_a_changed_message_is_read_or_refused_with_a_reason(
    name: str, tmp_path: Path, record_property: Callable[[str, str], None]
) -> None:
    decoder = KNOWN[name]
    check(apart(lambda: fuzz(decoder, decoder.inputs, 1, EXPECTED), tmp_path / "outcome.json"))
    record_property("figure", f"{name}: {decoder.inputs} of {decoder.inputs} inputs")


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", KNOWN)
def test_ten_times_as_many_changed_messages_are_read_or_refused_with_a_reason(
    name: str, tmp_path: Path
) -> None:
    decoder = KNOWN[name]
    outcome = apart(
        lambda: fuzz(decoder, 10 * decoder.inputs, 2, EXPECTED), tmp_path / "outcome.json"
    )
    keep(RESULTS, name, outcome)
    check(outcome)
