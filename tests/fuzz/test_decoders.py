"""Files that strangers made lead to a clear error, in bounded time and memory, or are read."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from .decoders import Decoder, decoders
from .session import apart, check, fuzz, keep

NAMES = (
    *("configuration", "table of one's own", "inputs to predict, CSV", "model card", "npz"),
    *("saved federation", "exported model", "record", "record in its folder", "environment"),
    *("damaged checkpoint", "forged tensors", "forged structure", "forged manifest"),
    *("forged record", "image"),
)
RESULTS = Path(__file__).parents[2] / "results" / "fuzz-decoders.json"


@pytest.fixture(scope="module")
def known(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Decoder]:
    return decoders(tmp_path_factory.mktemp("decoders"))


def test_every_decoder_is_shown_changed_files(known: dict[str, Decoder]) -> None:
    assert set(known) == set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_whole_files_are_read(known: dict[str, Decoder], name: str) -> None:
    for sample in known[name].samples:
        known[name].read(sample)


@pytest.mark.parametrize("name", NAMES)
def test_a_changed_file_is_read_or_refused_with_a_message(
    known: dict[str, Decoder],
    name: str,
    tmp_path: Path,
    record_property: Callable[[str, str], None],
) -> None:
    decoder = known[name]
    check(apart(lambda: fuzz(decoder, decoder.inputs, 1), tmp_path / "outcome.json"))
    record_property("figure", f"{name}: {decoder.inputs} of {decoder.inputs} inputs")


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", NAMES)
def test_ten_times_as_many_changed_files_are_read_or_refused_with_a_message(
    known: dict[str, Decoder], name: str, tmp_path: Path
) -> None:
    decoder = known[name]
    outcome = apart(lambda: fuzz(decoder, 10 * decoder.inputs, 2), tmp_path / "outcome.json")
    keep(RESULTS, name, outcome)
    check(outcome)
