"""StackOverflow as TensorFlow Federated publishes it: sentences of users, in SQLite or
HDF5 files.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from importlib import import_module
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

from fedblocks.core.errors import DataError
from fedblocks.core.options import AtLeast, Below, Help
from fedblocks.data.options import Buckets, Seed, SequenceSteps, Words, checked
from fedblocks.data.sets.divided import DividedPool, cached_pool
from fedblocks.data.sets.files import File, FileSet, FileSource, LocalFiles, StoredSet
from fedblocks.data.sets.text import Corpus, Texts, choose_users, set_aside
from fedblocks.data.sets.words import Vocabulary

SITE = "https://storage.googleapis.com/tff-datasets-public"
# may be absent; unpacked from stackoverflow.word_count.tar.bz2
COUNTS = File("stackoverflow.word_count")
FILES = FileSet(
    "stackoverflow",
    home="https://www.tensorflow.org/federated/api_docs/python/tff/simulation/datasets/stackoverflow"
    f" (unpack {SITE}/stackoverflow.sqlite.lzma or {SITE}/stackoverflow.tar.bz2)",
    sources=(
        FileSource("sqlite", (File("stackoverflow.sqlite"), COUNTS)),
        FileSource("sqlite", (File("stackoverflow.sqlite"),)),
        FileSource("h5", (File("stackoverflow_train.h5"), File("stackoverflow_test.h5"), COUNTS)),
        FileSource("h5", (File("stackoverflow_train.h5"), File("stackoverflow_test.h5"))),
    ),
)
Dated = tuple[bytes, list[str]]  # when a sentence was written, and its words


@checked
def stackoverflow(
    users: Annotated[
        int | None,
        AtLeast(1),
        Help("how many of the users who both train and test (195,303); None: all"),
    ] = 1000,
    *,
    words: Words = 10_000,
    buckets: Buckets = 1,
    steps: SequenceSteps = 20,
    most_train: Annotated[
        int, AtLeast(1), Help("training sentences of a user, the oldest first")
    ] = 1000,
    validation: Annotated[
        float,
        AtLeast(0),
        Below(1),
        Help("share of the training sentences that is set aside, the newest"),
    ] = 0.1,
    seed: Seed = 0,
) -> DividedPool:
    """Sentences of StackOverflow users for next-word prediction, in the official train
    and test parts.
    """

    def make(local: LocalFiles) -> DividedPool:
        corpus = read_corpus(local, users, most_train, validation, seed)
        return corpus.pool(vocabulary_for(local, corpus, words, buckets), steps, most=1)

    chosen = {"users": users, "most_train": most_train, "validation": validation, "seed": seed}
    return cached_pool(FILES, make, {**chosen, "words": words, "buckets": buckets, "steps": steps})


def read_corpus(
    local: LocalFiles, users: int | None, most_train: int, validation: float, seed: int
) -> Corpus:
    """The sentences of some users who have both training and test sentences."""
    read = from_sqlite if local.source.form == "sqlite" else from_h5
    own = {name: parts for name, parts in read(local.paths, users, seed) if all(parts)}
    if not own:
        message = f"no user of {local.paths[0]} has both training and test sentences"
        raise DataError(message, "get the official file")
    parts = [set_aside(in_order(first)[:most_train], validation) for first, _ in own.values()]
    about = {
        "name": "stackoverflow",
        "source": "TensorFlow Federated, CC BY-SA 3.0",
        "users": len(own),
        "seed": seed,
    }
    return Corpus(
        users=list(own),
        train=[train for train, _ in parts],
        validation=[newest for _, newest in parts],
        test=[in_order(second) for _, second in own.values()],
        about={**about, "most_train": most_train, "validation": validation, "order": "time"},
    )


def in_order(sentences: Iterable[Dated]) -> Texts:
    """Sentences from the oldest to the newest."""
    return [words for _, words in sorted(sentences, key=lambda sentence: sentence[0]) if words]


def vocabulary_for(local: LocalFiles, corpus: Corpus, words: int, buckets: int) -> Vocabulary:
    """The official most frequent words of all training users if their file is there,
    else those of the chosen users.
    """
    path = local.paths[-1]
    if path.name != COUNTS.name:
        return corpus.vocabulary(words, buckets)
    # a word and its count, the most frequent first
    with open(path, encoding="utf-8", errors="replace") as lines:
        listed = tuple(line.split()[0] for line in islice(lines, words) if line.strip())
    return Vocabulary(listed, buckets)


def from_sqlite(
    paths: Sequence[Path], users: int | None, seed: int
) -> Iterator[tuple[str, tuple[list[Dated], list[Dated]]]]:
    """Users with their training and test sentences, out of the official database."""
    both = "SELECT client_id FROM client_metadata WHERE split_name = ?"
    rows = "SELECT serialized_example_proto FROM examples WHERE split_name = ? AND client_id = ?"
    try:
        with closing(sqlite3.connect(f"{paths[0].absolute().as_uri()}?mode=ro", uri=True)) as base:
            names = [
                name for (name,) in base.execute(f"{both} INTERSECT {both}", ("train", "test"))
            ]
            for name in choose_users(names, users, seed):
                train, test = (
                    [sentence(data) for (data,) in base.execute(rows, (part, name))]
                    for part in ("train", "test")
                )
                yield name, (train, test)
    except sqlite3.Error as error:
        fix = f"it is damaged or another file: unpack {SITE}/stackoverflow.sqlite.lzma again"
        raise DataError(f"{paths[0]} cannot be read: {error}", fix) from error


def from_h5(
    paths: Sequence[Path], users: int | None, seed: int
) -> Iterator[tuple[str, tuple[list[Dated], list[Dated]]]]:
    """Users with their training and test sentences, out of the older HDF5 files."""
    try:
        h5py: Any = import_module("h5py")
    except ImportError as error:
        fix = (
            f"install h5py, or use the SQLite form instead: unpack {SITE}/stackoverflow.sqlite.lzma"
        )
        raise DataError(f"{paths[0]} is HDF5, which needs the package h5py", fix) from error
    try:
        with h5py.File(paths[0], "r") as first, h5py.File(paths[1], "r") as second:
            train, test = first["examples"], second["examples"]
            for name in choose_users([name for name in train if name in test], users, seed):
                yield name, (sentences_of(train[name]), sentences_of(test[name]))
    except (OSError, KeyError) as error:
        fix = f"it is damaged or another file: unpack {SITE}/stackoverflow.tar.bz2 again"
        raise DataError(f"{paths[0]} cannot be read: {error}", fix) from error


def sentences_of(group: Mapping[str, Any]) -> list[Dated]:
    """One user's sentences in an HDF5 file."""
    dates, tokens = group["creation_date"][()], group["tokens"][()]
    return [(date, text.decode().split()) for date, text in zip(dates, tokens)]


def sentence(example: bytes) -> Dated:
    """Date and words of one serialised tf.train.Example."""
    try:
        features = bytes_features(example)
        return features["creation_date"], features["tokens"].decode().split()
    except (KeyError, IndexError, UnicodeDecodeError) as error:
        raise DataError(
            f"an example of StackOverflow cannot be read: {error!r}", "get the official file"
        ) from error


def bytes_features(example: bytes) -> dict[str, bytes]:
    """Names and values of the features that are one string of bytes."""
    features_by_name = {}
    for features in of(example, 1):
        for entry in of(features, 1):  # a map is a list of (1: key, 2: value)
            for value in (
                v for feature in of(entry, 2) for strings in of(feature, 1) for v in of(strings, 1)
            ):
                features_by_name[next(iter(of(entry, 1))).decode()] = value
    return features_by_name


def of(message: bytes, number: int) -> list[bytes]:
    """The length-delimited fields of this number in a protocol-buffer message."""
    fields, at = [], 0
    while at < len(message):
        tag, at = varint(message, at)
        if tag & 7 == 2:  # length-delimited: strings, bytes, messages
            length, at = varint(message, at)
            if at + length > len(message):
                raise IndexError("the message is cut short")
            fields += [message[at : at + length]] if tag >> 3 == number else []
            at += length
        elif tag & 7 == 0:
            at = varint(message, at)[1]
        else:
            at += {1: 8, 5: 4}[tag & 7]  # fixed 64-bit and 32-bit numbers
    return fields


def varint(message: bytes, at: int) -> tuple[int, int]:
    """A number of 7 bits per byte, the low ones first, and where it ends."""
    value, shift = 0, 0
    while True:
        byte = message[at]
        value |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            return value, at


SETS = {
    "stackoverflow": StoredSet(
        "stackoverflow",
        stackoverflow,
        None,
        "tokens",
        "sentences of 342,477 users of StackOverflow (TFF)",
        FILES,
    )
}
