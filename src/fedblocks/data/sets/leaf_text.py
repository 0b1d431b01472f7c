"""Texts as the LEAF benchmark publishes them: Reddit comments of December 2017, and
Shakespeare by role.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

from fedblocks.core.errors import DataError
from fedblocks.core.options import AtLeast, Below, Help
from fedblocks.data.options import Buckets, Seed, Unit, Words, checked
from fedblocks.data.sets.divided import DividedPool, cached_pool
from fedblocks.data.sets.files import File, FileSet, FileSource, LocalFiles, StoredSet
from fedblocks.data.sets.text import Corpus, Texts, choose_users, set_aside
from fedblocks.data.sets.words import words_of

STEPS = {"character": 80, "word": 20}  # the usual length of a sequence
MARKS = {"<PAD>", "<BOS>", "<EOS>"}  # LEAF writes them into its sequences; we add our own
LEAF = "https://leaf.cmu.edu"
TRAIN, VALIDATION, TEST = File("train/*.json"), File("val/*.json"), File("test/*.json")
TextsOf = Callable[[Sequence[Any], Sequence[Any]], Texts]  # of a user's inputs x and targets y


def sources() -> tuple[FileSource, ...]:
    """LEAF's folders, with or without a validation part."""
    return FileSource("leaf", (TRAIN, VALIDATION, TEST)), FileSource("leaf", (TRAIN, TEST))


REDDIT = FileSet(
    "reddit", f"{LEAF} (data/reddit: the subsampled data that its README links)", sources()
)
SHAKESPEARE = FileSet(
    "shakespeare", f"{LEAF} (data/shakespeare: its preprocess.sh makes train/ and test/)", sources()
)


@checked
def reddit(
    users: Annotated[
        int | None, AtLeast(1), Help("how many users, at random; default: all")
    ] = None,
    words: Words = 10_000,
    buckets: Buckets = 1,
    steps: Annotated[int, AtLeast(1), Help("words of a sequence; 10 is LEAF's own length")] = 10,
    validation: Annotated[
        float,
        AtLeast(0),
        Below(1),
        Help("share of the training comments that is set aside where LEAF's val folder is absent"),
    ] = 0.1,
    seed: Seed = 0,
) -> DividedPool:
    """Reddit comments of December 2017 for next-word prediction, in LEAF's parts."""

    def make(local: LocalFiles) -> DividedPool:
        corpus = read_corpus(local, comments, users, validation, seed)
        return corpus.pool(corpus.vocabulary(words, buckets), steps)

    chosen = {"users": users, "validation": validation, "seed": seed}
    return cached_pool(REDDIT, make, {**chosen, "words": words, "buckets": buckets, "steps": steps})


@checked
def shakespeare(
    unit: Unit = "character",
    *,
    users: Annotated[
        int | None, AtLeast(1), Help("how many roles, at random; default: all")
    ] = None,
    words: Annotated[
        int, AtLeast(1), Help("size of the vocabulary; there are fewer than 100 characters")
    ] = 10_000,
    buckets: Buckets = 1,
    steps: Annotated[
        int | None, AtLeast(1), Help("of a sequence; default: 80 characters or 20 words")
    ] = None,
    validation: Annotated[
        float,
        AtLeast(0),
        Below(1),
        Help("share of the training text that is set aside where there is no val folder"),
    ] = 0.1,
    seed: Seed = 0,
) -> DividedPool:
    """Shakespeare by role for next-character or next-word prediction, in LEAF's parts.

    LEAF stores a window of 80 characters for every character. They are put together to text again,
    and cut so that each character is predicted once, from those before it in its sequence; LEAF
    predicts it from exactly 80.
    """
    length = steps or STEPS[unit]

    def make(local: LocalFiles) -> DividedPool:
        speeches: TextsOf = lambda x, y: units(stitch(x, y), unit)
        corpus = read_corpus(local, speeches, users, validation, seed)
        return corpus.pool(corpus.vocabulary(words, buckets), length)

    chosen = {"unit": unit, "users": users, "validation": validation, "seed": seed}
    numbers = {"words": words, "buckets": buckets, "steps": length}
    return cached_pool(SHAKESPEARE, make, {**chosen, **numbers})


def units(texts: Sequence[str], unit: str) -> Texts:
    """Texts as lists of characters or of words; empty ones are left out."""
    return [
        pieces
        for text in texts
        if (pieces := list(text) if unit == "character" else words_of(text))
    ]


def comments(x: Sequence[Any], y: Sequence[Any]) -> Texts:
    """Comments as words: LEAF cuts each into sequences, of which only the marks are too many."""
    cleaned = [[word for part in comment for word in part if word not in MARKS] for comment in x]
    return [words for words in cleaned if words]


def stitch(windows: Sequence[str], following: Sequence[str]) -> list[str]:
    """Text out of windows that move on by one character each, with the character that
    follows each.
    """
    texts: list[list[str]] = []
    expected = None
    for window, after in zip(windows, following):
        if window == expected:
            texts[-1].append(after)
        else:
            texts.append([window, after])
        expected = window[1:] + after
    return ["".join(pieces) for pieces in texts]


def read_corpus(
    local: LocalFiles,
    texts_of: TextsOf,
    users: int | None,
    validation: float,
    seed: int,
) -> Corpus:
    """The users of LEAF's files who have both training and test texts."""
    parts = {name: read_part(local, name) for name in ("train", "val", "test")}
    names = choose_users([name for name in parts["train"] if name in parts["test"]], users, seed)
    own = {
        part: [texts_of(*held.get(name, ([], []))) for name in names]
        for part, held in parts.items()
    }
    whole = [at for at in range(len(names)) if own["train"][at] and own["test"][at]]
    if not whole:
        message = f"no user of {local.paths[0].parent.parent} has both train and test texts"
        raise DataError(message, "get LEAF's files")
    train, val, test = ([own[part][at] for at in whole] for part in ("train", "val", "test"))
    if not parts["val"]:
        cut = [set_aside(texts, validation) for texts in train]
        train = [older for older, _ in cut]
        val = [newest for _, newest in cut]
    about = {
        "name": local.files.folder,
        "source": "LEAF",
        "users": len(whole),
        "seed": seed,
        "validation": validation,
    }
    return Corpus([names[at] for at in whole], train, val, test, about)


def read_part(local: LocalFiles, part: str) -> dict[str, tuple[list[Any], list[Any]]]:
    """Inputs and targets of each user in the files of one folder."""
    held: dict[str, tuple[list[Any], list[Any]]] = {}
    for path in (path for path in local.paths if path.parent.name == part):
        held |= read_json(path)
    return held


def read_json(path: Path) -> dict[str, tuple[list[Any], list[Any]]]:
    """One file of LEAF's: users, and under user_data their inputs x and targets y."""
    try:
        content = json.loads(path.read_bytes())
        return {
            user: (content["user_data"][user]["x"], content["user_data"][user]["y"])
            for user in content["users"]
        }
    except (OSError, ValueError, KeyError, TypeError) as error:
        fix = (
            "it is cut short or not of LEAF's format (users, num_samples, user_data): get it again"
        )
        raise DataError(f"{path} cannot be read: {error!r}", fix) from error


SETS = {
    "reddit": StoredSet(
        "reddit", reddit, None, "tokens", "Reddit comments of 12/2017, next word (LEAF)", REDDIT
    ),
    "shakespeare": StoredSet(
        "shakespeare",
        shakespeare,
        None,
        "tokens",
        "Shakespeare by role, next character or word (LEAF)",
        SHAKESPEARE,
    ),
}
