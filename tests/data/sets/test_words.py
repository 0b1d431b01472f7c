"""Words become numbers, and texts become sequences with their next words."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedblocks.core.errors import DataError
from fedblocks.data.federation import IGNORE
from fedblocks.data.sets.words import PAD, Vocabulary, sequences, words_of


def test_words_are_lower_case_and_punctuation_stands_alone() -> None:
    assert words_of("Don't panic, see <url>: 42!") == [
        "don't",
        "panic",
        ",",
        "see",
        "<url>",
        ":",
        "42",
        "!",
    ]


def test_the_most_frequent_words_are_kept_and_ties_go_by_the_alphabet() -> None:
    texts = [["b", "a", "c", "c"], ["d", "c", "b", "a"]]  # c 3, a 2, b 2, d 1
    assert Vocabulary.most_frequent(texts, 3).words == ("c", "a", "b")


def test_ten_thousand_words_make_10004_numbers_as_in_the_papers() -> None:
    assert Vocabulary(tuple(str(n) for n in range(10_000))).size == 10_004


def test_special_numbers_do_not_meet_and_fill_the_range() -> None:
    vocabulary = Vocabulary(("a", "b"), buckets=3)
    words = [vocabulary.number(word) for word in vocabulary.words]
    assert sorted([PAD, *words, vocabulary.bos, vocabulary.eos, *vocabulary.oov]) == list(
        range(vocabulary.size)
    )


def test_unknown_words_share_buckets_by_their_checksum() -> None:
    vocabulary = Vocabulary(("a",), buckets=5)
    # zlib.crc32(b"zebra") = 358047158, and 358047158 % 5 = 3; buckets begin at 1 word + 3
    assert vocabulary.number("zebra") == 4 + 3
    assert {vocabulary.number(str(n)) for n in range(100)} == set(vocabulary.oov)


def test_a_short_text_has_bos_before_eos_after_and_padding_that_is_not_scored() -> None:
    vocabulary = Vocabulary(("a", "b"))  # a 1, b 2, BOS 3, EOS 4, OOV 5
    cut = sequences([vocabulary.encode(["a", "x", "b"])], steps=6)
    assert cut.x.tolist() == [[3, 1, 5, 2, PAD, PAD]]
    assert cut.y.tolist() == [[1, 5, 2, 4, IGNORE, IGNORE]]


@pytest.mark.parametrize(("words", "room"), [(19, True), (20, False), (25, False)])
def test_of_20_steps_the_last_is_eos_only_if_there_is_room(words: int, room: bool) -> None:
    vocabulary = Vocabulary(("w",))  # w 1, BOS 2, EOS 3
    cut = sequences([vocabulary.encode(["w"] * words)], steps=20, most=1)
    assert cut.x.shape == (1, 20)
    assert cut.y[0, -1] == (vocabulary.eos if room else 1)


@given(st.lists(st.integers(0, 50), max_size=8), st.integers(1, 9))
def test_every_word_is_predicted_once(lengths: list[int], steps: int) -> None:
    texts = [list(range(1, length + 1)) for length in lengths]
    cut = sequences(texts, steps)
    for number, text in enumerate(texts):
        scored = cut.y[cut.text == number]
        assert scored[scored != IGNORE].tolist() == text[1:]
        assert cut.x[cut.text == number][scored != IGNORE].tolist() == text[:-1]
    assert (cut.x[cut.y == IGNORE] == PAD).all()


def test_a_vocabulary_of_nothing_is_refused() -> None:
    with pytest.raises(DataError, match="no words"):
        Vocabulary.most_frequent([], 10)
    with pytest.raises(DataError, match="buckets is 0"):
        Vocabulary(("a",), buckets=0)
    with pytest.raises(DataError, match='"a" twice'):
        Vocabulary(("a", "b", "a"))


def test_sequences_of_no_texts_are_empty() -> None:
    assert sequences([], steps=4).x.shape == (0, 4)
    assert np.issubdtype(sequences([], steps=4).text.dtype, np.integer)
