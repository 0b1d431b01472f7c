"""Words as numbers: a vocabulary of the most frequent ones, and texts cut into
sequences with the next words.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any
from zlib import crc32

import numpy as np

from fedblocks.core.errors import DataError
from fedblocks.data.partition import positive
from fedblocks.data.rows import Ints
from fedblocks.data.summary import IGNORE

PAD = 0
Text = Sequence[str]  # one text, as its words

_WORD = re.compile(r"<[a-z]+>|[a-z0-9]+(?:'[a-z]+)*|[^\sa-z0-9]")


def words_of(text: str) -> list[str]:
    """Lower-case words, numbers, marks such as <url>, and punctuation signs one by one."""
    return _WORD.findall(text.lower())


@dataclass(frozen=True)
class Vocabulary:
    """Numbers of words: 0 pads, then the words, BOS, EOS, and last the buckets of all
    other words (OOV).
    """

    words: tuple[str, ...]  # the most frequent first
    buckets: int = 1  # numbers that the words outside share, by their checksum

    def __post_init__(self) -> None:
        positive(buckets=self.buckets)
        if len(set(self.words)) < len(self.words):
            twice = Counter(self.words).most_common(1)[0][0]
            raise DataError(f'the vocabulary names "{twice}" twice', "give every word once")

    @classmethod
    def most_frequent(cls, texts: Iterable[Text], size: int, buckets: int = 1) -> Vocabulary:
        """The `size` words that occur most often; words of equal count in alphabetical order."""
        positive(size=size)
        counts = Counter(word for text in texts for word in text)
        if not counts:
            raise DataError("there are no words to make a vocabulary of", "give texts for training")
        ranked = sorted(counts, key=lambda word: (-counts[word], word))
        return cls(tuple(ranked[:size]), buckets)

    @property
    def bos(self) -> int:
        """Stands before every text."""
        return len(self.words) + 1

    @property
    def eos(self) -> int:
        """Stands after every text."""
        return len(self.words) + 2

    @property
    def oov(self) -> range:
        """The numbers of words outside the vocabulary."""
        return range(len(self.words) + 3, len(self.words) + 3 + self.buckets)

    @property
    def size(self) -> int:
        """How many different numbers there are: words, OOV buckets, padding, BOS and EOS."""
        return len(self.words) + 3 + self.buckets

    @cached_property
    def _numbers(self) -> dict[str, int]:
        return {word: number for number, word in enumerate(self.words, start=1)}

    def number(self, word: str) -> int:
        """The number of a word; unknown words go to a bucket that is the same on every machine."""
        known = self._numbers.get(word)
        return known if known is not None else self.oov[crc32(word.encode()) % self.buckets]

    def encode(self, text: Text) -> list[int]:
        """BOS, the words, EOS."""
        return [self.bos, *map(self.number, text), self.eos]

    @property
    def marks(self) -> dict[str, Any]:
        """The special numbers, as a federation's `about` keeps them."""
        return {
            "words": len(self.words),
            "bos": self.bos,
            "eos": self.eos,
            "oov": [self.oov.start, self.oov.stop],
        }


@dataclass(frozen=True, eq=False)
class Sequences:
    """Sequences of one length, and which text each is from."""

    x: Ints  # [sequences, steps]
    y: Ints  # [sequences, steps]: the next words, IGNORE on padding
    text: Ints  # [sequences]


def sequences(texts: Sequence[Sequence[int]], steps: int, most: int | None = None) -> Sequences:
    """Cut encoded texts into inputs and next words; `most` sequences of each text, from its
    beginning (None: all).

    Every word is predicted once. With most=1 and 20 steps, EOS is there if the text has fewer than
    20 words.
    """
    positive(steps=steps, **({} if most is None else {"most": most}))
    lengths = np.array([len(text) - 1 for text in texts], dtype=np.int64)  # words to predict
    counts = -(-lengths // steps)
    counts = np.maximum(counts if most is None else np.minimum(counts, most), 0)
    first = np.cumsum(counts) - counts
    x = np.full((int(counts.sum()), steps), PAD, dtype=np.int64)
    y = np.full_like(x, IGNORE)
    for at, count, text in zip(first.tolist(), counts.tolist(), texts):
        kept = np.asarray(text[: count * steps + 1], dtype=np.int64)
        if count:
            x[at : at + count].reshape(-1)[: len(kept) - 1] = kept[:-1]
            y[at : at + count].reshape(-1)[: len(kept) - 1] = kept[1:]
    return Sequences(x, y, np.repeat(np.arange(len(texts)), counts))
