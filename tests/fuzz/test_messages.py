"""Messages that strangers made are refused with a reason, in bounded time and memory, or read."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'fedblocks[flower]'")

from .decoders import Decoder
from .session import apart, check, figures, fuzz
from .wire import EXPECTED, decoders_of_messages

RESULTS = Path(__file__).parents[2] / "results" / "fuzz-messages.json"
KNOWN = decoders_of_messages()


@pytest.mark.parametrize("decoder", KNOWN.values(), ids=[*KNOWN])
def test_whole_messages_are_read(decoder: Decoder) -> None:
    for sample in decoder.samples:
        decoder.read(sample)


@pytest.mark.parametrize("decoder", KNOWN.values(), ids=[*KNOWN])
def test_a_changed_message_is_read_or_refused_with_a_reason(
    decoder: Decoder, tmp_path: Path
) -> None:
    check(apart(lambda: fuzz(decoder, decoder.inputs, 1, EXPECTED), tmp_path / "outcome.json"))


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_a_million_changed_messages_are_read_or_refused_with_a_reason(tmp_path: Path) -> None:
    """Ten times as many as in the quick test, of another seed."""
    outcomes = {
        name: apart(
            partial(fuzz, decoder, 10 * decoder.inputs, 2, EXPECTED), tmp_path / "outcome.json"
        )
        for name, decoder in KNOWN.items()
    }
    RESULTS.write_text(json.dumps(figures(outcomes), indent=1) + "\n")
    for outcome in outcomes.values():
        check(outcome)
