"""Texts, records of phones and pictures of cameras: small parts, each worked out by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedblocks.core.errors import DataError
from fedblocks.data.federation import Federation
from fedblocks.data.pools import DataPool
from fedblocks.data.rows import Rows
from fedblocks.data.sets import realworld, wisdm
from fedblocks.data.sets.files import FileSource, LocalFiles
from fedblocks.data.sets.text import Corpus, left_out, scored_without, set_aside
from fedblocks.data.sets.tff import in_order
from fedblocks.data.sets.words import Vocabulary, sequences
from fedblocks.data.testbeds.camera import CAST, other_camera

MARKS = {"words": 3, "bos": 4, "eos": 5, "oov": [6, 8]}


def test_sentences_of_one_date_stay_as_they_came() -> None:
    dated = [(b"2", ["z"]), (b"1", ["b"]), (b"1", ["a"]), (b"0", []), (b"2", ["c"])]
    assert in_order(dated) == [["b"], ["a"], ["z"], ["c"]]


def test_a_feature_is_scaled_on_training_rows_and_a_missing_one_is_their_mean() -> None:
    """0 and 1 have mean 0.5 and deviation 0.5; a constant keeps its scale, no number is 0."""
    features = np.array([[0, 7, np.nan], [1, 7, np.nan], [9, 8, 3], [np.nan, 7, 4]], np.float32)
    with pytest.warns(RuntimeWarning):  # numpy's, of the column without numbers
        scaled = wisdm.fill_and_scale(features, np.array([True, True, False, False]))
    assert scaled.tolist() == [[-1, 0, 0], [1, 0, 0], [17, 1, 3], [0, 0, 4]]
    assert scaled.dtype == np.float32


def phone_records(lines: list[str], folder: Path) -> Any:
    path = folder / wisdm.RAW
    path.write_text("\n".join(lines))
    return wisdm.read_raw(LocalFiles(wisdm.FILES, wisdm.FILES.sources[0], (path,)))


def test_a_recording_ends_with_a_person_an_activity_or_a_pause(tmp_path: Path) -> None:
    pause = wisdm.PAUSE
    times = [
        *((1, "Walking", 5), (1, "Walking", 5), (1, "Walking", 5 + pause)),  # no pause yet
        *((1, "Walking", 6 + 2 * pause), (1, "Walking", 7), (1, "Jogging", 8), (2, "Jogging", 9)),
    ]
    lines = [f"{who},{what},{time},0.1,-2,{row};" for row, (who, what, time) in enumerate(times)]
    read = phone_records(lines, tmp_path)
    assert read.begin.tolist() == [0, 3, 4, 5, 6] and read.end.tolist() == [3, 4, 5, 6, 7]
    assert read.user.tolist() == [1, 1, 1, 1, 2] and read.label.tolist() == [0, 0, 0, 1, 1]
    assert read.signal.dtype == np.float32 and read.hz == 20
    assert read.signal[2].tolist() == np.array([0.1, -2, 2], np.float32).tolist()
    assert {read.begin.dtype, read.end.dtype, read.user.dtype} == {np.dtype(np.int64)}


@pytest.mark.parametrize(("good", "fits"), [(99, True), (98, False)])
def test_one_malformed_record_in_a_hundred_is_let_pass(
    good: int, fits: bool, tmp_path: Path
) -> None:
    lines = ["1,Sitting,1,1,1,1;"] * good + ["1,Sitting,0,1,1,1,;"]
    if fits:
        assert len(phone_records(lines, tmp_path).signal) == good
        return
    with pytest.raises(DataError, match=r"1 of 99 records of .* are malformed"):
        phone_records(lines, tmp_path)


@pytest.mark.parametrize(
    ("fields", "record"),
    [
        ("3, Downstairs ,1,1.5,2,-3", (3, 3, 1, 1.5, 2.0, -3.0)),
        ("3,downstairs,0,1,2,3", None),
        ("3,downstairs,1,nan,2,3", None),
        ("3,downstairs,1,1,2", None),
        ("3,flying,1,1,2,3", None),
    ],
)
def test_a_record_is_whole_known_and_later_than_0(fields: str, record: Any) -> None:
    assert wisdm.parse_record(fields.split(",")) == record


def test_samples_of_a_table_are_in_the_order_of_time() -> None:
    text = b'id,"attr_time",attr_x,attr_y,attr_z\n0,20,1,2,3\n1,10,9,8,7\n2,20,0,0,0\n'
    rows = realworld.numbers("a.csv", text).tolist()
    assert rows == [[10, 9, 8, 7], [20, 1, 2, 3], [20, 0, 0, 0]]
    with pytest.raises(DataError, match=r"a\.csv cannot be read"):
        realworld.numbers("a.csv", b"id,attr_time\n0,1\n")


def test_recordings_are_sorted_whatever_the_order_of_the_files(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    table = np.array([[0, 1, 1, 1], [60, 2, 2, 2]], np.float64)
    both = {"acc": table, "gyr": table + np.array([0, 1, 1, 1])}
    held = {
        (2, "walking", 1): both, (1, "lying", 1): {"acc": table}, (1, "walking", 2): both,
        (1, "climbingup", 1): both,
    }  # fmt: skip
    monkeypatch.setattr(realworld, "tables", lambda local: held)
    read = realworld.read(LocalFiles(realworld.FILES, FileSource("csv", ()), (Path("a.csv"),)))
    assert read.user.tolist() == [1, 1, 2] and read.label.tolist() == [1, 0, 0]
    assert read.begin.tolist() == [0, 3, 6] and read.end.tolist() == [3, 6, 9]  # 0, 20, 40 ms
    assert read.signal[0].tolist() == [1, 1, 1, 2, 2, 2] and read.hz == 50


def test_a_corpus_without_texts_is_a_pool_without_rows() -> None:
    words = Vocabulary(("a",))
    empty = Corpus(["u"], [[]], [[]], [[]]).pool(words, 3)
    assert empty.x.shape == (0, 3) and empty.part.dtype == np.int64 and not len(empty.users)  # type: ignore[arg-type]
    whole = Corpus(["u", "v"], [[["a"]], []], [[], [["b"]]], [[["a"]], []]).pool(words, 3)
    assert whole.users.tolist() == ["u", "v", "u"]  # type: ignore[union-attr]
    assert whole.part.tolist() == [0, 1, 2] and whole.classes == 5


@pytest.mark.parametrize(
    ("score", "out"),
    [
        ("all", [0, 0, 0, 0, 0, 1]),
        ("without_oov", [0, 0, 1, 1, 0, 1]),
        ("without_oov_and_eos", [0, 1, 1, 1, 0, 1]),
    ],
)
def test_words_that_are_not_scored_stay_as_labels_of_training(score: str, out: list[int]) -> None:
    y = torch.tensor([[3, 5, 6, 7, 8, -100]])
    assert left_out(y, MARKS, score).int().tolist() == [out]
    rows = [Rows.of([[0]]), Rows.of([[1]]), Rows.of([[2, 0]])]
    about = {"vocabulary": MARKS, "name": "toy"}
    data = Federation(y.repeat(3, 1), y.repeat(3, 1), *rows, 9, about=about)
    scored = scored_without(data, score)
    assert scored.about == {**about, "score": score} and "score" not in data.about
    expected = [-100 if gone else int(label) for gone, label in zip(out, y[0])]
    assert scored.y.tolist() == [y[0].tolist(), expected, expected]
    assert data.y[1].tolist() == y[0].tolist()


@pytest.mark.parametrize(
    ("share", "texts", "parts"),
    [
        (0.5, ["abc"], (["ab"], ["c"])),
        (0.0, ["abc"], (["abc"], [])),
        (0.34, ["ab", "cd", "ef"], (["ab", "cd"], ["ef"])),
        (0.33, ["ab", "cd", "ef"], (["ab", "cd", "ef"], [])),
    ],
)
def test_the_newest_texts_are_set_aside(share: float, texts: Any, parts: Any) -> None:
    assert set_aside(texts, share) == parts


def test_sequences_of_a_text_are_as_many_as_asked_for() -> None:
    texts = [[1, 2, 3, 4, 5], [6, 7], [8]]
    cut = sequences(texts, 2)
    assert cut.x.tolist() == [[1, 2], [3, 4], [6, 0]] and cut.text.tolist() == [0, 0, 1]
    assert cut.y.tolist() == [[2, 3], [4, 5], [7, -100]]
    first = sequences(texts, 2, most=1)
    assert first.x.tolist() == [[1, 2], [6, 0]] and first.text.tolist() == [0, 1]
    assert sequences(texts, 3, most=2).y.tolist() == [[2, 3, 4], [5, -100, -100], [7, -100, -100]]


def test_another_camera_enlarges_and_colours_and_says_how() -> None:
    y = torch.zeros(2, dtype=torch.int64)
    pool = DataPool(torch.ones(2, 3, 4, 4), y, 1, about={"name": "toy"})
    seen = other_camera(pool, side=6, blur=0.5, noise=0.0, seed=3)
    assert seen.x.shape == (2, 3, 6, 6)
    assert seen.x[:, :, 0, 0].tolist() == [pytest.approx(CAST)] * 2
    assert seen.about == {
        "name": "toy_other_camera", "side": 6, "blur": 0.5, "noise": 0.0, "cast": list(CAST),
        "camera_seed": 3,
    }  # fmt: skip
    grey = DataPool(torch.ones(2, 1, 4, 4), y, 1)
    assert other_camera(grey, side=4, noise=0.0).x.unique().tolist() == [pytest.approx(1.0)]
    for wrong in ({"side": 0}, {"blur": 0.0}):
        with pytest.raises(DataError, match=f"{next(iter(wrong))} is 0"):
            other_camera(pool, **wrong)  # type: ignore[arg-type]
