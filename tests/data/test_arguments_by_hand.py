"""What test-beds and data sets are told reaches what divides and reads for them, all of it."""

from __future__ import annotations

import json
import lzma
import sqlite3
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from fedblocks.core.errors import DataError
from fedblocks.data.pools import DataPool
from fedblocks.data.rows import Rows
from fedblocks.data.sets import corpora, har, leaf_text, realworld, tff, wisdm
from fedblocks.data.sets.words import Vocabulary
from fedblocks.data.testbeds import fedem, pfedmb, users

Y = torch.tensor([0, 1, 2, 0, 1, 2])
POOL = DataPool(torch.zeros(6, 2), Y, 3, coarse=np.array([0, 0, 1, 0, 0, 1]))


def given(*values: Any, **named: Any) -> Any:
    return *values, named


@pytest.mark.parametrize(
    ("make", "options", "expected"),
    [
        (fedem.fedem_cifar10, {"clients": 2, "clusters": 3, "alpha": 0.5}, (2, 3, 0.5, 1.0, 7, {})),
        (fedem.fedem_emnist, {"clients": 2, "alpha": 0.5, "fraction": 0.25},
         (2, None, 0.5, 0.25, 7, {})),
        (fedem.fedem_cifar100, {"clients": 2, "alpha": 0.5, "beta": 3.0},
         ([0, 0, 1, 0, 0, 1], 2, {"alpha": 0.5, "beta": 3.0, "seed": 7})),
    ],
)  # fmt: skip
def test_what_fedem_divides_by_is_handed_on(
    make: Any, options: dict[str, Any], expected: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("label_clusters", "pachinko"):
        monkeypatch.setattr(fedem, name, given)
    split: Any = lambda *values: SimpleNamespace(values=values, compact=lambda: "compact")
    seen = []
    monkeypatch.setattr(fedem, "split_like_fedem", lambda *v: seen.append(v) or split(*v))
    made = make(POOL, **options, validation=0.25, seed=7)
    (pool, (labels, *others), validation, seed), *_ = seen
    assert pool is POOL and labels.tolist() == Y.tolist() and (validation, seed) == (0.25, 7)
    plain = [one.tolist() if isinstance(one, np.ndarray) else one for one in others]
    assert tuple(plain) == expected
    assert (made == "compact") is (make is fedem.fedem_emnist)


def test_writers_and_coarse_labels_are_needed_where_they_decide() -> None:
    bare = DataPool(torch.zeros(2, 1), Y[:2], 3)
    with pytest.raises(DataError, match="needs coarse labels"):
        fedem.fedem_cifar100(bare, 2)
    with pytest.raises(DataError, match="needs the writer of each row"):
        fedem.fedem_femnist(bare)


@pytest.mark.parametrize(
    ("make", "name", "options", "expected"),
    [
        (pfedmb.pfedmb_twenty_classes, "classes_unequal",
         {"clients": 5, "per_client": 4, "low": 0.2, "high": 0.6},
         {"clients": 5, "per_client": 4, "low": 0.2, "high": 0.6, "seed": 7}),
        (pfedmb.pfedmb_two_classes, "classes", {"clients": 5, "per_client": 4}, (5, 4, 7, {})),
        (pfedmb.pfedmb_pairs, "pairs", {}, (7, {})),
        (pfedmb.pfedmb_dirichlet, "divide_by_class",
         {"clients": 5, "alpha": 0.2, "min_size": 3, "tries": 1},
         {"clients": 5, "alpha": 0.2, "min_size": 3, "tries": 1000,
          "whole_rows": pfedmb.cut_all, "seed": pfedmb.derive(7, "pfedmb", 0)}),
    ],
)  # fmt: skip
def test_what_pfedmb_divides_by_is_handed_on(
    make: Any, name: str, options: Any, expected: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pfedmb, name, given)
    seen = []
    enough = SimpleNamespace(test=Rows.of([[0], [1]]))
    monkeypatch.setattr(pfedmb, "alike_in_all_parts", lambda *v: seen.append(v) or enough)
    assert make(POOL, **options, fraction=0.5, seed=7) is enough
    ((pool, draw, seed, fraction),) = seen
    assert pool is POOL and (seed, fraction) == (7, 0.5)
    labels, *others = draw("labels")
    assert labels == "labels"
    assert tuple(others) == (expected if isinstance(expected, tuple) else (expected,))


@pytest.mark.parametrize(
    ("module", "name", "recordings"),
    [
        (har, "hapt", "hapt_recordings"), (har, "wisdm51_watch", "wisdm51_recordings"),
        (realworld, "realworld", "realworld_recordings"), (wisdm, "wisdm", "wisdm_recordings"),
    ],
)  # fmt: skip
def test_how_signals_are_cut_is_handed_on(
    module: Any, name: str, recordings: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, recordings, lambda: recordings)
    monkeypatch.setattr(module, "window_pool", given)
    cut = getattr(module, name)(steps=9, overlap=0.25, stretch=3.0, split=(0.5, 0.2, 0.3), seed=4)
    assert cut == (recordings, 9, 0.25, 3.0, (0.5, 0.2, 0.3), 4, {})


def test_recordings_say_their_name_and_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    arrays = {name: np.array([5, 6]) for name in ("signal", "begin", "end", "label", "user")}
    asked = []
    monkeypatch.setattr(har, "cached_arrays", lambda files, decode: asked.append(files) or arrays)
    made = har.cached_recordings(har.WATCH, har.watch_compact, ("sits",), 25, "toy")
    assert (made.about, made.hz, made.activities) == ({"name": "toy"}, 25, ("sits",))
    assert asked == [har.WATCH] and made.arrays == arrays


class Corpus:
    """Stands for a corpus: says how it became numbers."""

    def vocabulary(self, words: int, buckets: int) -> Any:
        return "vocabulary", words, buckets

    def pool(self, *values: Any, **named: Any) -> Any:
        return values, named


TEXT = {"words": 50, "buckets": 3, "steps": 6}


@pytest.mark.parametrize(
    ("module", "load", "files", "options", "corpus"),
    [
        (corpora, "reddit_2006", corpora.REDDIT,
         {"users": 4, "least": 2, "split": (0.5, 0.2, 0.3), "seed": 9},
         ("reddit_2006", {"a": [["x", "y"]]}, 4, 2, (0.5, 0.2, 0.3), 9)),
        (corpora, "shakespeare_roles", corpora.SHAKESPEARE,
         {"unit": "character", "users": 4, "least": 2, "split": (0.5, 0.2, 0.3), "seed": 9},
         ("shakespeare_roles", {"a": [["X", " ", "y"]]}, 4, 2, (0.5, 0.2, 0.3), 9)),
        (leaf_text, "reddit", leaf_text.REDDIT, {"users": 4, "validation": 0.2, "seed": 9},
         ("local", leaf_text.comments, 4, 0.2, 9)),
        (tff, "stackoverflow", tff.FILES,
         {"users": 4, "most_train": 7, "validation": 0.2, "seed": 9}, ("local", 4, 7, 0.2, 9)),
    ],
)  # fmt: skip
def test_how_texts_become_numbers_is_handed_on(
    module: Any, load: str, files: Any, options: Any, corpus: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And what is kept is found again by all that it depends on."""
    monkeypatch.setattr(module, "cached_pool", given)
    asked: list[Any] = []
    reads = "corpus_of" if module is corpora else "read_corpus"
    monkeypatch.setattr(module, reads, lambda *v: asked.append(v) or Corpus())
    if module is corpora:
        held = {"users": ["a"], "texts": ["X y"], "speeches": ["X y"]}
        monkeypatch.setattr(
            module, "read_json", lambda path, texts: {"users": ["a"], texts: [held[texts]]}
        )
    known_files, make, choices, _ = getattr(module, load)(**options, **TEXT)
    assert known_files is files
    plain = {k: list(v) if isinstance(v, tuple) else v for k, v in options.items()}
    assert choices == {**plain, **TEXT}
    monkeypatch.setattr(tff, "vocabulary_for", given)
    local: Any = SimpleNamespace(paths=("path",)) if module is corpora else "local"
    (vocabulary, steps), named = make(local)
    assert steps == 6 and named == ({"most": 1} if module is tff else {})
    assert vocabulary[-2:] == (50, 3) or vocabulary[2:] == (50, 3, {})
    ((*values,),) = asked
    assert tuple(values) == corpus


def test_speeches_of_leaf_are_put_together_before_they_are_cut(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(leaf_text, "cached_pool", given)
    asked: list[Any] = []
    monkeypatch.setattr(leaf_text, "read_corpus", lambda *v: asked.append(v) or Corpus())
    _, make, choices, _ = leaf_text.shakespeare("word", users=4, validation=0.2, seed=9)
    assert choices == {
        "unit": "word", "users": 4, "validation": 0.2, "seed": 9, "words": 10_000, "buckets": 1,
        "steps": 20,
    }  # fmt: skip
    assert make("local") == ((("vocabulary", 10_000, 1), 20), {})
    ((local, speeches, *others),) = asked
    assert local == "local" and others == [4, 0.2, 9]
    assert speeches(["ab", "bc", "xy"], ["c", " ", "z"]) == [["abc"], ["xyz"]]


def test_a_user_of_stackoverflow_has_sentences_of_both_parts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    dated = [(b"2", ["b"]), (b"1", ["a"]), (b"3", ["c"])]
    held = [("u", (dated, dated[:1])), ("v", (dated, [])), ("w", ([], dated))]
    monkeypatch.setattr(tff, "from_sqlite", lambda paths, users, seed: iter(held))
    local: Any = SimpleNamespace(source=tff.FILES.sources[0], paths=(Path("a.sqlite"),))
    corpus = tff.read_corpus(local, 5, 2, 0.5, 8)
    assert corpus.users == ["u"] and corpus.test == [[["b"]]]
    assert (corpus.train, corpus.validation) == ([[["a"]]], [[["b"]]])  # of the two oldest
    assert corpus.about == {
        "name": "stackoverflow", "source": "TensorFlow Federated, CC BY-SA 3.0", "users": 1,
        "seed": 8, "most_train": 2, "validation": 0.5, "order": "time",
    }  # fmt: skip
    held[:] = held[1:]
    with pytest.raises(DataError, match=r"no user of a\.sqlite has both training and test"):
        tff.read_corpus(local, 5, 2, 0.5, 8)


def test_a_packed_file_has_as_many_texts_as_users(tmp_path: Path) -> None:
    path = tmp_path / "a.json.xz"
    for content, fits in (
        ({"users": ["a"], "texts": [["x"]]}, True),
        ({"users": ["a"], "texts": []}, False),
    ):
        path.write_bytes(lzma.compress(json.dumps(content).encode()))
        if fits:
            assert corpora.read_json(path, "texts") == content
        with pytest.raises(DataError, match="cannot be read"):
            corpora.read_json(path, "texts" if not fits else "speeches")


def test_the_official_words_are_used_where_their_file_is_there(tmp_path: Path) -> None:
    corpus: Any = SimpleNamespace(vocabulary=lambda *values: values)
    counts = tmp_path / tff.COUNTS.name
    counts.write_text("the 9\n\nof 8\nand 7\n")
    local: Any = SimpleNamespace(paths=(tmp_path / "a.sqlite", counts))
    assert tff.vocabulary_for(local, corpus, 3, 2) == Vocabulary(("the", "of"), 2)
    local.paths = local.paths[:1]
    assert tff.vocabulary_for(local, corpus, 3, 2) == (3, 2)


def test_people_are_drawn_as_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(users, "draw_users", given)
    monkeypatch.setattr(users, "thin_rows", given)
    pool = SimpleNamespace(federation=lambda: "all")
    loads = {"hapt": partial(lambda **named: named == {"split": users.SPLIT, "seed": 5} and pool)}
    monkeypatch.setattr(users, "SIGNALS", loads)
    drawn = users.some_people("hapt", users=3, most=9, least=4, seed=5)
    assert drawn == (("all", 3, 4, 5, {}), 9, {})  # type: ignore[comparison-overlap]


def test_a_database_is_opened_to_be_read_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def refused(*values: Any, **named: Any) -> None:
        asked.append((values, named))
        raise sqlite3.OperationalError("no")

    monkeypatch.setattr(tff.sqlite3, "connect", refused)
    with pytest.raises(DataError, match=r"a\.sqlite cannot be read: no"):
        next(tff.from_sqlite([Path("/one/a.sqlite")], None, 0))
    assert asked == [(("file:///one/a.sqlite?mode=ro",), {"uri": True})]
