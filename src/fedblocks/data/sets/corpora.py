"""Small real texts by user in compact files: Reddit comments of early 2006, and
Shakespeare's roles.
"""

from __future__ import annotations

import json
import lzma
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from fedblocks.core.errors import DataError
from fedblocks.core.options import AtLeast, AtMost, Help
from fedblocks.data.options import Buckets, Seed, SequenceSteps, Unit, Words, checked
from fedblocks.data.sets.divided import DividedPool, cached_pool
from fedblocks.data.sets.files import File, FileSet, FileSource, LocalFiles, StoredSet
from fedblocks.data.sets.leaf_text import STEPS, units
from fedblocks.data.sets.text import Corpus, Texts, choose_users
from fedblocks.data.splits import Fractions

ABOUT = "docs/data-sets.md, compact files"
REDDIT = FileSet(
    "reddit_2006",
    ABOUT,
    (
        FileSource(
            "compact",
            (
                File(
                    "reddit_2006q1_users.json.xz",
                    1_520_560,
                    "e84f88fd89655e331083871654fe65ebe9b157e9617fdfe456ddbe83bf9283bd",
                ),
            ),
        ),
    ),
)
SHAKESPEARE = FileSet(
    "shakespeare_roles",
    ABOUT,
    (
        FileSource(
            "compact",
            (
                File(
                    "shakespeare_roles.json.xz",
                    1_361_272,
                    "44a6ff5edf19b5017c6d2103818c83b6f10cefdd1a3df59f9fcfb6de0f7127a1",
                ),
            ),
        ),
    ),
)


@checked
def reddit_2006(
    users: Annotated[
        int | None,
        AtLeast(1),
        Help("how many users, at random; default: all that have enough comments"),
    ] = None,
    *,
    least: Annotated[int, AtLeast(1), Help("comments that a user must have")] = 5,
    words: Words = 10_000,
    buckets: Buckets = 1,
    steps: SequenceSteps = 20,
    split: Annotated[
        Fractions, AtLeast(0), AtMost(1), Help("of each user's comments, in the order of time")
    ] = (0.7, 0.1, 0.2),
    seed: Seed = 0,
) -> DividedPool:
    """Reddit comments of January to March 2006 for next-word prediction: a stand-in for
    larger Reddit sets.
    """

    def make(local: LocalFiles) -> DividedPool:
        content = read_json(local.paths[0], "texts")
        texts = {user: units(own, "word") for user, own in zip(content["users"], content["texts"])}
        corpus = corpus_of("reddit_2006", texts, users, least, split, seed)
        return corpus.pool(corpus.vocabulary(words, buckets), steps)

    chosen = {"users": users, "least": least, "split": list(split), "seed": seed}
    return cached_pool(REDDIT, make, {**chosen, "words": words, "buckets": buckets, "steps": steps})


@checked
def shakespeare_roles(
    unit: Unit = "word",
    *,
    users: Annotated[
        int | None,
        AtLeast(1),
        Help("how many roles, at random; default: all that have enough speeches"),
    ] = None,
    least: Annotated[int, AtLeast(1), Help("speeches that a role must have")] = 5,
    words: Annotated[
        int, AtLeast(1), Help("size of the vocabulary; there are fewer than 100 characters")
    ] = 10_000,
    buckets: Buckets = 1,
    steps: Annotated[
        int | None, AtLeast(1), Help("of a sequence; default: 20 words or 80 characters")
    ] = None,
    split: Annotated[
        Fractions, AtLeast(0), AtMost(1), Help("of each role's speeches, in the order of the play")
    ] = (0.7, 0.1, 0.2),
    seed: Seed = 0,
) -> DividedPool:
    """Speeches of 37 plays by role, for next-word or next-character prediction."""
    length = steps or STEPS[unit]

    def make(local: LocalFiles) -> DividedPool:
        content = read_json(local.paths[0], "speeches")
        texts = {user: units(own, unit) for user, own in zip(content["users"], content["speeches"])}
        corpus = corpus_of("shakespeare_roles", texts, users, least, split, seed)
        return corpus.pool(corpus.vocabulary(words, buckets), length)

    chosen = {"unit": unit, "users": users, "least": least, "split": list(split), "seed": seed}
    numbers = {"words": words, "buckets": buckets, "steps": length}
    return cached_pool(SHAKESPEARE, make, {**chosen, **numbers})


def corpus_of(
    name: str,
    texts: Mapping[str, Texts],
    users: int | None,
    least: int,
    split: Fractions,
    seed: int,
) -> Corpus:
    """Some of the users with enough texts, divided in the order of time."""
    enough = [user for user, own in texts.items() if len(own) >= least]
    if not enough:
        raise DataError(f"no user has {least} texts or more", "ask for fewer: least=...")
    chosen = choose_users(enough, users, seed)
    about = {"name": name, "users": len(chosen), "least": least, "seed": seed}
    return Corpus.in_time_order({user: texts[user] for user in chosen}, split, about)


def read_json(path: Path, texts: str) -> dict[str, Sequence[Any]]:
    """The users and their texts, out of one packed JSON file."""
    try:
        content: dict[str, Sequence[Any]] = json.loads(lzma.decompress(path.read_bytes()))
        if len(content["users"]) != len(content[texts]):
            raise KeyError(f"{len(content['users'])} users, but {texts} of {len(content[texts])}")
        return content
    except (OSError, ValueError, KeyError, TypeError, lzma.LZMAError, EOFError) as error:
        fix = f"it is cut short or not of the format {{users, {texts}}}: get it again"
        raise DataError(f"{path} cannot be read: {error}", fix) from error


SETS = {
    "reddit_2006": StoredSet(
        "reddit_2006",
        reddit_2006,
        None,
        "tokens",
        "19,337 Reddit comments of early 2006 by user, next word",
        REDDIT,
    ),
    "shakespeare_roles": StoredSet(
        "shakespeare_roles",
        shakespeare_roles,
        None,
        "tokens",
        "31,204 speeches of 1,154 roles",
        SHAKESPEARE,
    ),
}
