"""Texts of one's own: a table with a column for the text and one for the user."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated

from fedblocks.core.errors import DataError, nearest
from fedblocks.core.options import AtLeast, Help
from fedblocks.core.task import Task
from fedblocks.data.options import Buckets, Shares, Unit, Words, checked
from fedblocks.data.pools import DataSet
from fedblocks.data.sets.divided import DividedPool
from fedblocks.data.sets.leaf_text import STEPS, units
from fedblocks.data.sets.own import read_table
from fedblocks.data.sets.text import Corpus
from fedblocks.data.sets.words import Vocabulary
from fedblocks.data.splits import Fractions

Least = Annotated[int, AtLeast(1), Help("texts that a user must have; others are left out")]
Steps = Annotated[int | None, AtLeast(1), Help("of a sequence; default: 20 words or 80 characters")]


@checked
def text_table(
    path: Annotated[str, Help("a CSV file with a line of column names, the oldest text first")],
    text: Annotated[str, Help("the column of texts")] = "text",
    user: Annotated[str, Help("the column of user ids")] = "user",
    *,
    unit: Unit = "word",
    least: Least = 3,
    words: Words = 10_000,
    buckets: Buckets = 1,
    steps: Steps = None,
    split: Shares = (0.7, 0.1, 0.2),
) -> DividedPool:
    """Texts of users as sequences of words or characters, of which each is the next one's task."""
    names, lines = read_table(path)
    for column in (text, user):
        if column not in names:
            raise DataError(f'{path} has no column "{column}"', nearest(column, names))
    texts: dict[str, list[str]] = {}
    for line in lines:
        texts.setdefault(line[names.index(user)].strip(), []).append(line[names.index(text)])
    pool = text_pool(texts, unit, least, (words, buckets), steps, split)
    return replace(pool, about={**pool.about, "name": "texts", "path": path})


def text_pool(
    texts: Mapping[str, Sequence[str]],
    unit: str = "word",
    least: int = 3,
    vocabulary: tuple[int, int] = (10_000, 1),
    steps: int | None = None,
    split: Fractions = (0.7, 0.1, 0.2),
) -> DividedPool:
    """Each user's texts, the oldest first, for next-word or next-character prediction;
    `vocabulary`: the most frequent words of the training parts, and buckets of all others.
    """
    pieces = {user: units(own, unit) for user, own in texts.items()}
    enough = {user: own for user, own in pieces.items() if len(own) >= least}
    if not enough:
        raise DataError(f"no user has {least} texts or more", "ask for fewer: least=...")
    corpus = Corpus.in_time_order(enough, split, {"users": len(enough), "unit": unit})
    known = corpus.vocabulary(*vocabulary)
    pool = corpus.pool(known, steps or STEPS[unit])
    about = {**pool.about, "class_names": spell(known)}
    return replace(pool, about=about, task=Task("next-token"))


def spell(vocabulary: Vocabulary) -> list[str]:
    """What each number of a vocabulary stands for."""
    unknown = ["<oov>"] * vocabulary.buckets
    return ["<padding>", *vocabulary.words, "<begin>", "<end>", *unknown]


SETS = {
    "texts": DataSet("texts", text_table, None, "tokens", "your own texts by user, next word"),
}
