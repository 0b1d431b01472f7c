"""Texts are read from tiny files of the official formats; damaged ones are refused."""

from __future__ import annotations

import json
import lzma
import sqlite3
import sys
import types
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedblocks.core.errors import DataError
from fedblocks.data.federation import IGNORE
from fedblocks.data.sets.corpora import corpus_of, read_json, reddit_2006, shakespeare_roles
from fedblocks.data.sets.divided import TEST, TRAIN, VALIDATION, DividedPool
from fedblocks.data.sets.leaf_text import reddit, shakespeare, stitch, units
from fedblocks.data.sets.tff import bytes_features, stackoverflow


@pytest.fixture(autouse=True)
def home(data_folder: Path) -> Path:
    """An empty folder for data sets."""
    return data_folder


def length(size: int) -> bytes:
    """A protocol-buffer varint: 7 bits per byte, low ones first, the top bit says that
    more follow.
    """
    return bytes([size]) if size < 128 else bytes([size & 127 | 128]) + length(size >> 7)


def field(number: int, content: bytes) -> bytes:
    """A length-delimited field."""
    return length(number << 3 | 2) + length(len(content)) + content


def example(tokens: str, date: str) -> bytes:
    """A tf.train.Example as TensorFlow Federated stores it, with a number among its features."""
    strings = {"tokens": tokens, "creation_date": date, "title": "a title", "type": "answer"}
    entries = [
        field(1, k.encode()) + field(2, field(1, field(1, v.encode()))) for k, v in strings.items()
    ]
    score = field(1, b"score") + field(2, field(3, field(1, b"\x07")))  # a list of one int64
    return field(1, b"".join(field(1, entry) for entry in [score, *entries]))


SENTENCES = {  # (part, user): sentences with their dates, not in the order of time
    ("train", "7"): [
        ("how to sort a list", "2010-02-01"),
        ("first question", "2010-01-01"),
        ("a b c", "2010-03-01"),
    ],
    ("test", "7"): [("sort the list", "2018-01-01")],
    ("train", "8"): [("a list of lists", "2012-01-01"), ("a list", "2012-01-02")],
    ("test", "8"): [("what is it", "2018-01-02")],
    ("train", "9"): [("only for training", "2011-01-01")],
    ("test", "10"): [("only for test", "2018-01-03")],
}


def write_sqlite(path: Path) -> None:
    """The official tables."""
    path.parent.mkdir(exist_ok=True)
    with closing(sqlite3.connect(path)) as base, base:
        base.execute(
            "CREATE TABLE examples (split_name TEXT, client_id TEXT, serialized_example_proto BLOB)"
        )
        base.execute(
            "CREATE TABLE client_metadata (client_id TEXT, split_name TEXT, num_examples INTEGER)"
        )
        for (part, user), texts in SENTENCES.items():
            base.execute("INSERT INTO client_metadata VALUES (?, ?, ?)", (user, part, len(texts)))
            rows = [(part, user, example(*text)) for text in texts]
            base.executemany("INSERT INTO examples VALUES (?, ?, ?)", rows)


def rows_of(pool: DividedPool, user: str, part: int) -> list[int]:
    assert pool.users is not None
    return np.flatnonzero((pool.users == user) & (pool.part == part)).tolist()


def firsts(pool: DividedPool, user: str, part: int) -> list[int]:
    """The first word of each sequence of a user's part."""
    return pool.y[rows_of(pool, user, part), 0].tolist()


def users_of(pool: DividedPool) -> set[str]:
    assert pool.users is not None
    return set(pool.users.tolist())


def test_features_of_an_example_are_read_past_numbers_and_long_strings() -> None:
    long = "word " * 100
    assert bytes_features(example(long, "2010"))["tokens"].decode() == long
    assert "score" not in bytes_features(example(long, "2010"))


def test_stackoverflow_keeps_users_of_both_parts_in_the_order_of_time(home: Path) -> None:
    write_sqlite(home / "stackoverflow" / "stackoverflow.sqlite")
    (home / "stackoverflow" / "stackoverflow.word_count").write_text(
        "a\t9\nlist\t8\nfirst\t7\nhow\t6\nsort\t5\n"
    )
    pool = stackoverflow(words=4, validation=0.4)
    assert pool.classes == 4 + 4 and pool.x.shape[1] == 20
    assert users_of(pool) == {"7", "8"}
    assert firsts(pool, "7", TRAIN) == [3, 4]  # "first question", then "how to sort a list"
    # "a b c"; "sort" is the fifth: OOV
    assert firsts(pool, "7", VALIDATION) == [1] and firsts(pool, "7", TEST) == [7]
    assert pool.federation().clients == 2


def test_without_the_word_counts_the_vocabulary_is_that_of_training(home: Path) -> None:
    write_sqlite(home / "stackoverflow" / "stackoverflow.sqlite")
    pool = stackoverflow(words=2, most_train=1, validation=0)
    # oldest sentences: "first question" and "a list of lists"; all words once, so the alphabet
    # decides: a 1, first 2
    assert firsts(pool, "7", TRAIN) == [2] and firsts(pool, "8", TRAIN) == [1]


def test_another_choice_is_not_answered_from_the_cache(home: Path) -> None:
    write_sqlite(home / "stackoverflow" / "stackoverflow.sqlite")
    assert stackoverflow(words=2).classes == 6 and stackoverflow(words=3).classes == 7
    assert len(users_of(stackoverflow(users=1))) == 1


def test_a_file_that_is_no_database_is_refused(home: Path) -> None:
    (home / "stackoverflow").mkdir()
    (home / "stackoverflow" / "stackoverflow.sqlite").write_bytes(b"not a database at all" * 100)
    with pytest.raises(DataError, match=r"(?s)cannot be read.*unpack"):
        stackoverflow()


def test_a_cut_example_is_refused(home: Path) -> None:
    write_sqlite(home / "stackoverflow" / "stackoverflow.sqlite")
    with closing(sqlite3.connect(home / "stackoverflow" / "stackoverflow.sqlite")) as base, base:
        base.execute(
            "UPDATE examples SET serialized_example_proto = substr(serialized_example_proto, 1, 40)"
        )
    with pytest.raises(DataError, match="example of StackOverflow"):
        stackoverflow()


class FakeFile(dict[str, Any]):
    """What h5py gives: groups as mappings, arrays that are read with [()]."""

    def __enter__(self) -> FakeFile:
        return self

    def __exit__(self, *error: object) -> None:
        pass


def fake_h5py() -> types.ModuleType:
    def opened(path: Path, mode: str) -> FakeFile:
        part = "train" if "train" in path.name else "test"
        groups = {user: texts for (own, user), texts in SENTENCES.items() if own == part}
        arrays = {
            u: [np.array([t[k].encode() for t in texts]) for k in (0, 1)]
            for u, texts in groups.items()
        }
        return FakeFile(
            examples={u: {"tokens": a, "creation_date": b} for u, (a, b) in arrays.items()}
        )

    module = types.ModuleType("h5py")
    module.File = opened  # type: ignore[attr-defined]
    return module


def test_hdf5_files_hold_the_same_texts_as_the_database(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_sqlite(home / "stackoverflow" / "stackoverflow.sqlite")
    expected = stackoverflow(words=5)
    (home / "stackoverflow" / "stackoverflow.sqlite").unlink()
    for part in ("train", "test"):
        (home / "stackoverflow" / f"stackoverflow_{part}.h5").touch()
    monkeypatch.setitem(sys.modules, "h5py", fake_h5py())
    assert stackoverflow(words=5).federation().hash() == expected.federation().hash()


def test_without_h5py_the_message_names_it_and_the_other_form(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (home / "stackoverflow").mkdir()
    for part in ("train", "test"):
        (home / "stackoverflow" / f"stackoverflow_{part}.h5").touch()
    monkeypatch.setitem(sys.modules, "h5py", None)
    with pytest.raises(DataError, match=r"(?s)h5py.*stackoverflow\.sqlite\.lzma"):
        stackoverflow()


def write_leaf(folder: Path, part: str, users: dict[str, tuple[list[Any], list[Any]]]) -> None:
    """One file of LEAF's format."""
    (folder / part).mkdir(parents=True, exist_ok=True)
    data = {user: {"x": x, "y": y} for user, (x, y) in users.items()}
    content = {
        "users": list(users),
        "num_samples": [len(x) for x, _ in users.values()],
        "user_data": data,
    }
    (folder / part / f"some_{part}_9.json").write_text(json.dumps(content))


def comment(words: str, steps: int = 10) -> tuple[list[list[str]], dict[str, Any]]:
    """A comment as LEAF stores it: sequences of 10, BOS before, EOS after, padded, with
    their targets.
    """
    tokens = ["<BOS>", *words.split(), "<EOS>"]
    tokens += ["<PAD>"] * (-(len(tokens) - 1) % steps)
    x = [tokens[at : at + steps] for at in range(0, len(tokens) - 1, steps)]
    y = [tokens[at + 1 : at + steps + 1] for at in range(0, len(tokens) - 1, steps)]
    return x, {"target_tokens": y, "count_tokens": [[int(t != "<PAD>") for t in row] for row in y]}


def comments(*texts: str) -> tuple[list[Any], list[Any]]:
    both = [comment(text) for text in texts]
    return [x for x, _ in both], [y for _, y in both]


def test_leafs_reddit_comes_back_in_the_sequences_that_leaf_made(home: Path) -> None:
    long = "one two three four five six seven eight nine ten eleven twelve"
    write_leaf(
        home / "reddit", "train", {"ann": comments(long, "two two"), "bob": comments("one", "two")}
    )
    write_leaf(home / "reddit", "val", {"ann": comments("two"), "bob": comments("one")})
    write_leaf(home / "reddit", "test", {"ann": comments("three"), "eve": comments("no training")})
    pool = reddit(words=100)
    assert users_of(pool) == {"ann"}  # bob has no test, eve no training
    train = rows_of(pool, "ann", TRAIN)
    _, y = comments(long, "two two")
    scored = [
        [IGNORE if t == "<PAD>" else t for t in row] for own in y for row in own["target_tokens"]
    ]
    assert len(train) == len(scored) == 3
    number = dict(zip([t for row in scored for t in row], pool.y[train].flatten().tolist()))
    # a word is one number throughout
    assert pool.y[train].tolist() == [[number[t] for t in row] for row in scored]
    assert len({n for t, n in number.items() if t not in (IGNORE, "<EOS>")}) == 12
    assert firsts(pool, "ann", TEST) == [number["three"]] and firsts(pool, "ann", VALIDATION) == [
        number["two"]
    ]


def windows(text: str, size: int = 5) -> tuple[list[Any], list[Any]]:
    """LEAF's Shakespeare: a window for every character, and the character after it."""
    return [text[at : at + size] for at in range(len(text) - size)], list(text[size:])


def test_windows_of_characters_become_text_again() -> None:
    text = "to be or not to be, that is the question"
    assert stitch(*windows(text)) == [text]
    first, second = windows("hello world"), windows("good night")
    assert stitch(first[0] + second[0], first[1] + second[1]) == ["hello world", "good night"]
    assert stitch([], []) == []


@pytest.mark.parametrize(("unit", "predicted"), [("character", 20), ("word", 5)])
def test_shakespeare_predicts_each_unit_once(home: Path, unit: str, predicted: int) -> None:
    text = "the quick brown fox!"  # 20 characters; the, quick, brown, fox, !
    write_leaf(home / "shakespeare", "train", {"ROLE": windows(text)})
    write_leaf(home / "shakespeare", "test", {"ROLE": windows("the end of it")})
    pool = shakespeare(unit=unit, validation=0)
    labels = pool.y[rows_of(pool, "ROLE", TRAIN)]
    assert int((labels != IGNORE).sum()) == predicted + 1  # and EOS
    assert pool.x.shape[1] == (80 if unit == "character" else 20)
    assert len(rows_of(shakespeare(unit=unit, validation=0.2), "ROLE", VALIDATION)) == 1


def test_a_cut_json_and_a_wrong_unit_are_refused(home: Path) -> None:
    write_leaf(home / "reddit", "train", {"ann": comments("a b")})
    write_leaf(home / "reddit", "test", {"ann": comments("a b")})
    path = home / "reddit" / "test" / "some_test_9.json"
    path.write_bytes(path.read_bytes()[:-30])
    with pytest.raises(DataError, match=r"some_test_9\.json cannot be read"):
        reddit()
    path.write_text('{"people": []}')
    with pytest.raises(DataError, match="LEAF's format"):
        reddit()
    with pytest.raises(DataError, match='unit = "syllable": must be "word" or "character"'):
        shakespeare(unit="syllable")


@pytest.mark.parametrize(
    ("load", "file"),
    [
        (stackoverflow, "stackoverflow.sqlite"),
        (reddit, r"train/\*.json"),
        (shakespeare, r"train/\*.json"),
        (reddit_2006, "reddit_2006q1_users.json.xz"),
        (shakespeare_roles, "shakespeare_roles.json.xz"),
    ],
)
def test_missing_files_are_named(load: Any, file: str) -> None:
    with pytest.raises(DataError, match=f"(?s)are not in.*{file}"):
        load()


def test_a_compact_file_that_is_cut_or_another_is_refused(home: Path) -> None:
    path = home / "reddit_2006q1_users.json.xz"
    path.write_bytes(lzma.compress(b"{}"))
    with pytest.raises(DataError, match="cut short"):
        reddit_2006()
    path.write_bytes(b"x" * 1_520_560)
    with pytest.raises(DataError, match="damaged or another version"):
        reddit_2006()


def test_a_compact_file_holds_users_and_texts(tmp_path: Path) -> None:
    path = tmp_path / "some.json.xz"
    texts = {"users": ["ann", "bob"], "texts": [["One two.", "", "Three!"], ["Four"]]}
    path.write_bytes(lzma.compress(json.dumps(texts).encode()))
    content = read_json(path, "texts")
    own = {user: units(held, "word") for user, held in zip(content["users"], content["texts"])}
    assert own == {"ann": [["one", "two", "."], ["three", "!"]], "bob": [["four"]]}
    assert list(corpus_of("some", own, None, 2, (0.5, 0, 0.5), 0).users) == ["ann"]
    with pytest.raises(DataError, match="no user has 3 texts"):
        corpus_of("some", own, None, 3, (0.5, 0, 0.5), 0)
    path.write_bytes(lzma.compress(b'{"users": ["ann"], "texts": []}'))
    with pytest.raises(DataError, match="cannot be read"):
        read_json(path, "texts")
    path.write_bytes(b"plain")
    with pytest.raises(DataError, match="cannot be read"):
        read_json(path, "texts")
