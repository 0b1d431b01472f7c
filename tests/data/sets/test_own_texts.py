"""Texts of one's own become sequences by user, in the order of the table."""

from __future__ import annotations

from pathlib import Path

import pytest

import fedblocks as fb
from fedblocks.data import dataset
from fedblocks.data.sets.divided import TEST, TRAIN

TABLE = """user,text
ann,"Rain, again."
bob,snow
ann,rain today
bob,snow today
ann,rain and wind
bob,snow again
ann,storm
cid,hello
"""


@pytest.fixture
def path(tmp_path: Path) -> str:
    (tmp_path / "texts.csv").write_text(TABLE)
    return str(tmp_path / "texts.csv")


def test_a_users_first_texts_train_and_the_last_ones_test(path: str) -> None:
    pool = dataset("texts").load(path, words=5, steps=4, split=(0.5, 0.25, 0.25))
    words = pool.about["class_names"]
    assert pool.users is not None and sorted({*pool.users}) == ["ann", "bob"]  # cid has one text
    # of the training texts of both, three words twice, then in the order of the alphabet
    assert words[:6] == ["<padding>", "rain", "snow", "today", ",", "."]
    assert words[6:] == ["<begin>", "<end>", "<oov>"]
    assert pool.classes == 9 and pool.task.kind == "next-token"
    rows = (pool.users == "ann") & (pool.part == TRAIN)
    assert [[words[n] for n in row] for row in pool.x[rows].tolist()] == [
        ["<begin>", "rain", ",", "<oov>"],
        [".", "<padding>", "<padding>", "<padding>"],
        ["<begin>", "rain", "today", "<padding>"],
    ]
    last = pool.y[(pool.users == "ann") & (pool.part == TEST)].tolist()
    assert last == [[8, 7, fb.IGNORE, fb.IGNORE]]  # storm is not known, then the end


def test_characters_may_be_predicted_instead(path: str) -> None:
    pool = dataset("texts").load(path, unit="character", words=50)
    assert pool.x.shape[1] == 80 and "R" in pool.about["class_names"]


def test_a_configuration_trains_the_table_by_perplexity_or_by_what_it_says(
    path: str, tmp_path: Path
) -> None:
    table = {
        "rounds": 1,
        "data": {"name": "texts", "options": {"path": path}, "partition": {"name": "by_user"}},
        "net": {"name": "gru", "units": 4},
        "method": {"name": "fedavg", "batch_size": 2},
    }
    run = fb.run(fb.Config.of(table), tmp_path / "run")
    assert run.metric.name == "perplexity" and len(run.scores()) == 2
    task = {"kind": "next-token", "metrics": ["accuracy"], "label_smoothing": 0.1}
    run = fb.run(fb.Config.of({**table, "task": task}), tmp_path / "other")
    assert run.metric.name == "accuracy"


@pytest.mark.parametrize(
    ("options", "words"),
    [({"text": "texts"}, 'no column "texts"'), ({"least": 9}, "no user has 9 texts")],
)
def test_what_is_not_there_is_refused(path: str, options: dict[str, object], words: str) -> None:
    with pytest.raises(fb.DataError, match=words):
        dataset("texts").load(path, **options)
