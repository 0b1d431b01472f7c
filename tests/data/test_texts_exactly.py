"""Texts as sequences of numbers, and files that are fetched, by cases computed by hand."""

from __future__ import annotations

import io
import urllib.request
from importlib import import_module
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np
import pytest
import torch

from fedblocks.core.errors import DataError
from fedblocks.core.random import generator
from fedblocks.data.federation import Federation
from fedblocks.data.rows import Rows
from fedblocks.data.sets.files import File, FileSet, FileSource
from fedblocks.data.sets.text import (
    Corpus,
    choose_users,
    count_words,
    left_out,
    scored_view,
    scored_without,
    scores_of,
    set_aside,
)
from fedblocks.data.sets.tff import in_order, vocabulary_for
from fedblocks.data.sets.words import Vocabulary, sequences

# the package has a function of this name
download: Any = import_module("fedblocks.data.sets.download")
MARKS = {"words": 2, "bos": 3, "eos": 4, "oov": [5, 7]}  # words 1 and 2, unknown ones 5 and 6


def test_numbers_of_a_vocabulary_follow_one_another() -> None:
    made = Vocabulary(("the", "a"), 2)
    assert made.marks == MARKS and made.size == 7
    unknown = 5 + crc32(b"cat") % 2
    assert made.encode(["a", "cat", "the"]) == [3, 2, unknown, 1, 4]
    with pytest.raises(DataError, match='names "a" twice'):
        Vocabulary(("the", "a", "a"))
    with pytest.raises(DataError, match="buckets is 0"):
        Vocabulary(("a",), 0)


def test_the_most_frequent_words_come_first_and_equals_by_the_alphabet() -> None:
    texts = [["b", "a", "c"], ["c", "b"], ["d"]]
    assert Vocabulary.most_frequent(texts, 3).words == ("b", "c", "a")
    assert Vocabulary.most_frequent(texts, 9, 4).buckets == 4
    with pytest.raises(DataError, match="there are no words"):
        Vocabulary.most_frequent([[]], 3)
    with pytest.raises(DataError, match="size is 0"):
        Vocabulary.most_frequent(texts, 0)


def test_texts_are_cut_into_steps_and_the_next_words() -> None:
    cut = sequences([[3, 1, 2, 4], [3, 4], [3], []], 2)
    assert cut.x.tolist() == [[3, 1], [2, 0], [3, 0]]
    assert cut.y.tolist() == [[1, 2], [4, -100], [4, -100]]
    assert cut.text.tolist() == [0, 0, 1] and cut.x.dtype == cut.y.dtype == np.int64
    first = sequences([[3, 1, 2, 4], [3, 4]], 2, most=1)
    assert first.x.tolist() == [[3, 1], [3, 0]] and first.y.tolist() == [[1, 2], [4, -100]]
    assert sequences([[3, 1, 4]], 2).y.tolist() == [[1, 4]]  # just full
    assert sequences([], 2).x.dtype == np.int64
    assert sequences([[], [3, 4]], 1).text.tolist() == [1]
    for options in ({"steps": 0}, {"steps": 2, "most": 0}):
        with pytest.raises(DataError, match="is 0"):
            sequences([[3, 4]], **options)


def test_a_corpus_becomes_rows_of_its_users_and_parts() -> None:
    corpus = Corpus(["u", "v"], [[["a"]], [["a", "b"]]], [[], [["b"]]], [[["b"]], []], {"k": 1})
    vocabulary = corpus.vocabulary(1, 2)
    assert vocabulary == Vocabulary(("a",), 2)  # `b` is in training once, `a` twice
    pool = corpus.pool(Vocabulary(("a", "b")), 2)
    assert pool.x.tolist() == [[3, 1], [3, 1], [2, 0], [3, 2], [3, 2]]
    assert pool.users is not None and pool.users.tolist() == ["u", "v", "v", "v", "u"]
    assert pool.part.tolist() == [0, 0, 0, 1, 2] and pool.classes == 6
    about = {
        "k": 1,
        "steps": 2,
        "sequences_per_text": None,
        "vocabulary": Vocabulary(("a", "b")).marks,
    }
    assert pool.about == about
    with pytest.raises(DataError, match="another number of users than 1"):
        Corpus(["u"], [[]], [[]], [])
    with pytest.raises(DataError, match="there are no users"):
        Corpus.in_time_order({}, (0.6, 0.2, 0.2))


def test_texts_are_divided_in_the_order_of_time() -> None:
    texts = [[str(number)] for number in range(10)]
    made = Corpus.in_time_order({"u": texts}, (0.6, 0.2, 0.2), {"k": 1})
    assert made.train == [texts[:6]] and made.validation == [texts[6:8]]
    assert made.test == [texts[8:]]
    assert made.about == {"k": 1, "split": [0.6, 0.2, 0.2], "order": "time"}


def test_the_newest_share_is_set_aside_and_a_single_text_is_cut() -> None:
    assert set_aside([["a"], ["b"], ["c"]], 0.4) == ([["a"], ["b"]], [["c"]])
    assert set_aside([["a"], ["b"]], 0.4) == ([["a"], ["b"]], [])
    assert set_aside([["a", "b", "c"]], 0.4) == ([["a", "b"]], [["c"]])
    assert set_aside([["a", "b"]], 0.4) == ([["a", "b"]], [])
    assert set_aside([], 0.4) == ([], [])


def test_users_are_drawn_in_the_order_of_their_names() -> None:
    names = ["d", "b", "a", "c"]
    assert choose_users(names, None, 0) == choose_users(names, 4, 0) == ["a", "b", "c", "d"]
    places = sorted(generator(7, "users").permutation(4)[:3].tolist())
    assert choose_users(names, 3, 7) == ["abcd"[place] for place in places]


def test_words_that_do_not_count_lie_between_the_marks() -> None:
    labels = torch.tensor([1, 4, 5, 6, 7, -100])
    out = {score: left_out(labels, MARKS, score).int().tolist() for score in scores_of(MARKS)}
    assert out == {
        "all": [0, 0, 0, 0, 0, 1],
        "without_oov": [0, 0, 1, 1, 0, 1],
        "without_oov_and_eos": [0, 1, 1, 1, 0, 1],
    }
    assert list(scores_of({})) == ["all"]
    assert scored_view("test", "all") == "test"
    assert scored_view("test", "without_oov") == "test_without_oov"
    words = torch.tensor([1, 4, 5, 1, 1, 1])
    counts = {"all": (3, 5), "without_oov": (2, 3), "without_oov_and_eos": (1, 2)}
    assert count_words(words, labels, MARKS) == counts
    logits = torch.nn.functional.one_hot(words, 8).float()
    assert count_words(logits, labels, MARKS) == counts


def test_a_row_that_is_also_trained_on_keeps_its_labels() -> None:
    y = torch.tensor([[5, 1]] * 4)
    parts = Rows.of([[0, 1]]), Rows.of([[2]]), Rows.of([[1, 3]])
    about = {"vocabulary": MARKS}
    data = Federation(torch.ones(4, 2, dtype=torch.int64), y, *parts, 7, about=about)
    scored = scored_without(data, "without_oov")
    assert scored.y.tolist() == [[5, 1], [5, 1], [-100, 1], [-100, 1]]
    assert scored.about == {**about, "score": "without_oov"}
    assert data.y.tolist() == [[5, 1]] * 4


def test_sentences_go_by_date_alone_and_the_official_words_by_their_place(tmp_path: Path) -> None:
    dated = [(b"2", ["x"]), (b"1", ["z"]), (b"1", []), (b"1", ["a"])]
    assert in_order(dated) == [["z"], ["a"], ["x"]]
    path = tmp_path / "stackoverflow.word_count"
    path.write_bytes(b"the 9\n\nof 8\n\xff 7\nin 6\n")
    local: Any = type("Local", (), {"paths": (path,)})
    corpus = Corpus(["u"], [[["a"]]], [[]], [[]])
    assert vocabulary_for(local, corpus, 4, 2) == Vocabulary(("the", "of", "\ufffd"), 2)


class Answer(io.BytesIO):
    """What a site gives, with the length that it says."""

    def __init__(self, content: bytes, says: str | None) -> None:
        super().__init__(content)
        self.headers = {} if says is None else {"Content-Length": says}


def answer(monkeypatch: pytest.MonkeyPatch, content: bytes, says: str | None) -> list[Any]:
    asked: list[Any] = []

    def open_site(url: str, timeout: float | None = None) -> Answer:
        asked.append((url, timeout))
        return Answer(content, says)

    monkeypatch.setattr(urllib.request, "urlopen", open_site)
    return asked


@pytest.mark.parametrize("says", [None, "3"])
def test_a_file_is_fetched_into_a_folder_that_is_made(
    says: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = answer(monkeypatch, b"abc", says)
    folder = tmp_path / "new" / "set"
    path = download.fetch(File("f", 3, url="http://site/f"), folder, "home")
    assert path == folder / "f" and path.read_bytes() == b"abc"
    assert path.stat().st_mode & 0o777 == 0o644 and [*folder.iterdir()] == [path]
    assert asked == [("http://site/f", 60)]
    download.fetch(File("g", 3, url="http://site/g"), folder, "home")  # the folder is there now
    download.fetch(File("f", 3, url="http://site/f"), folder, "home")
    assert len(asked) == 2  # what is there is not fetched again


@pytest.mark.parametrize(
    ("says", "size", "message"),
    [
        ("4", None, "broke off after 3 of 4 bytes"),
        ("3", 5, "http://site/f did not give the official f"),
    ],
)
def test_what_is_not_whole_is_not_kept(
    says: str, size: int | None, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer(monkeypatch, b"abc", says)
    with pytest.raises(DataError, match=message):
        download.fetch(File("f", size, url="http://site/f"), tmp_path, "home")
    assert [*tmp_path.iterdir()] == []
    (tmp_path / "f").write_bytes(b"abcd")
    with pytest.raises(DataError):  # another file under that name is told, and stays
        download.fetch(File("f", 3, url="http://site/f"), tmp_path, "home")
    assert (tmp_path / "f").read_bytes() == b"abcd"


def test_an_unfinished_file_stands_hidden_beside_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []

    def look(path: Path, file: File, home: str) -> None:
        assert path.parent == tmp_path
        seen.append(path.name)

    monkeypatch.setattr(download, "verify_file", look)
    answer(monkeypatch, b"abc", None)
    download.fetch(File("f", url="http://site/f"), tmp_path, "home")
    assert seen[0].startswith(".f.") and seen[0].endswith(".part")


def test_the_first_source_of_whole_files_is_fetched_or_that_of_a_form(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(download, "roots", lambda: [tmp_path, tmp_path / "second"])
    answer(monkeypatch, b"abc", None)
    there, not_there = File("a", url="http://site/a"), File("b")
    sources = (
        FileSource("x", (there, not_there)),
        FileSource("y", (there,)),
        FileSource("z", (File("c", url="http://site/c"),)),
    )
    files = FileSet("set", "home", sources)
    assert download.download(files) == [tmp_path / "set" / "a"]
    assert download.download(files, "z") == [tmp_path / "set" / "c"]
    with pytest.raises(DataError, match='"set" cannot be fetched automatically'):
        download.download(files, "x")
