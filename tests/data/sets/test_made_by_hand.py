"""Data sets made of files that are put in their place, and pieces of them worked out by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedblocks.core.errors import DataError
from fedblocks.data import sets
from fedblocks.data.sets import corpora, har, har_groups, tff, wisdm
from fedblocks.data.sets.signals import Windows
from fedblocks.data.testbeds import unlike


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What a data set of texts chose, and the names of what it read."""
    seen: dict[str, Any] = {}

    def read(path: Path, texts: str) -> dict[str, Any]:
        seen["read"] = (path.name, texts)
        return {
            "users": ["ann", "bob", "eve"],
            texts: [["one two"] * 4, ["three four five"] * 3, ["six"]],
        }

    def pool(files: Any, make: Any, choices: dict[str, Any]) -> Any:
        seen.update(files=files, choices=choices)
        local = type("Local", (), {"paths": [Path("texts.xz")]})
        return make(local)

    monkeypatch.setattr(corpora, "read_json", read)
    monkeypatch.setattr(corpora, "cached_pool", pool)
    return seen


def test_reddit_is_words_of_users_with_enough_comments(made: dict[str, Any]) -> None:
    pool = corpora.reddit_2006(least=3, words=4, buckets=2, steps=5, split=(0.5, 0.0, 0.5), seed=1)
    assert made["read"] == ("texts.xz", "texts") and made["files"] is corpora.REDDIT
    assert made["choices"] == {
        "users": None, "least": 3, "split": [0.5, 0.0, 0.5], "seed": 1, "words": 4, "buckets": 2,
        "steps": 5,
    }  # fmt: skip
    assert set(pool.users) == {"ann", "bob"} and pool.x.shape[1] == 5  # type: ignore[arg-type]
    assert pool.about["name"] == "reddit_2006" and pool.about["least"] == 3


@pytest.mark.parametrize(("unit", "steps"), [("word", 20), ("character", 80)])
def test_roles_speak_in_words_or_characters(unit: Any, steps: int, made: dict[str, Any]) -> None:
    pool = corpora.shakespeare_roles(unit, users=1, least=2, words=9, seed=2)
    assert made["read"] == ("texts.xz", "speeches") and made["files"] is corpora.SHAKESPEARE
    assert made["choices"] == {
        "unit": unit, "users": 1, "least": 2, "split": [0.7, 0.1, 0.2], "seed": 2, "words": 9,
        "buckets": 1, "steps": steps,
    }  # fmt: skip
    assert pool.x.shape[1] == steps and len(set(pool.users)) == 1  # type: ignore[arg-type]
    assert pool.about["name"] == "shakespeare_roles"
    assert corpora.shakespeare_roles(unit, least=2, steps=3).x.shape[1] == 3


def test_features_of_wisdm_are_divided_in_order_and_scaled(monkeypatch: pytest.MonkeyPatch) -> None:
    arrays = {
        "F": np.array([[1.0, 5.0], [3.0, np.nan], [9.0, 5.0], [0.0, 0.0]], np.float32),
        "user": np.array([7, 7, 7, 12], np.int8),
        "label": np.array([0, 0, 0, 2], np.int8),
    }
    monkeypatch.setattr(wisdm, "cached_features", lambda: arrays)
    pool = wisdm.wisdm_features((2 / 3, 0.0, 1 / 3))
    assert pool.part.tolist() == [0, 0, 2, 0] and pool.y.tolist() == [0, 0, 0, 2]
    assert list(pool.users) == ["user-07"] * 3 + ["user-12"]  # type: ignore[arg-type]
    mean, deviation = np.mean([1.0, 3.0, 0.0]), np.std([1.0, 3.0, 0.0])
    assert pool.x[:, 0].tolist() == pytest.approx((np.array([1, 3, 9, 0]) - mean) / deviation)
    assert pool.x[1, 1] == 0.0  # missing: the mean
    assert pool.x[0, 1] == pytest.approx(1.0)  # of 5 and 0
    assert pool.classes == 6 and pool.about["name"] == "wisdm_features"
    assert pool.about["split"] == [2 / 3, 0.0, 1 / 3]


def test_a_phone_and_a_watch_have_windows_of_their_own_length_and_words(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: dict[str, Any] = {}

    def group(recordings: str, steps: int, **options: Any) -> str:
        asked[recordings] = (steps, options)
        return recordings

    monkeypatch.setattr(unlike, "har_groups", group)
    monkeypatch.setattr(unlike, "hapt_recordings", lambda: "phone")
    monkeypatch.setattr(unlike, "wisdm51_recordings", lambda: "watch")
    monkeypatch.setattr(unlike, "together", lambda names, makers: [makers[n]() for n in names])
    assert unlike.modfl_phone_and_watch(clients=3, per_group=1, per_label=9, seed=5) == [
        "phone", "watch",
    ]  # fmt: skip
    common = {"clients": 3, "per_group": 1, "per_label": 9, "seed": 5}
    assert asked["phone"] == (128, {**common, "activities": har_groups.FOUR})
    assert asked["watch"] == (52, {**common, "activities": har_groups.FOUR_WATCH})
    assert unlike.modfl_phone_and_watch(("wisdm51_watch",)) == ["watch"]


def test_recordings_are_on_one_side_alone_and_as_many_windows_are_drawn_as_asked_for() -> None:
    label = np.array([0] * 12 + [1] * 4)
    recording = np.repeat(np.arange(8), 2)
    cut = Windows(np.zeros((16, 1, 1), np.float32), label, np.zeros(16, int), recording)
    train, test = har_groups.sides(cut, 0, 6, 3, np.random.default_rng(0), ["walking", "sitting"])
    assert len(train) == 6 and len(test) == 3 and {*train.tolist(), *test.tolist()} <= {*range(12)}
    assert not {*recording[train].tolist()} & {*recording[test].tolist()}
    assert train.tolist() == sorted(train.tolist()) and test.tolist() == sorted(test.tolist())
    with pytest.raises(DataError, match=r"sitting: 2 \+ 2 windows, where 3 \+ 1 are needed"):
        har_groups.sides(cut, 1, 3, 1, np.random.default_rng(0), ["walking", "sitting"])


def test_fields_of_a_message_are_found_between_those_of_other_kinds() -> None:
    number, fixed64, fixed32 = b"\x08\x96\x01", b"\x11" + 8 * b"\x01", b"\x1d" + 4 * b"\x02"
    message = number + fixed64 + b"\x0a\x02hi" + fixed32 + b"\x12\x01x" + b"\x0a\x01!"
    assert tff.of(message, 1) == [b"hi", b"!"] and tff.of(message, 2) == [b"x"]
    assert tff.varint(b"\x00\x96\x01", 1) == (150, 3)  # 0x16 + (1 << 7)
    with pytest.raises(IndexError, match="cut short"):
        tff.of(b"\x0a\x03hi", 1)


def test_only_data_sets_with_files_can_be_fetched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sets, "download", lambda files, form: [files.folder, form])
    assert sets.fetch("wisdm_features", "compact") == [wisdm.FEATURES.folder, "compact"]
    for name in ("npz", "nothing"):
        with pytest.raises(DataError, match=f'no files belong to a data set "{name}"'):
            sets.fetch(name)


def records(*lines: str) -> str:
    return "".join(f"{line};\n" for line in lines)


def test_a_recording_of_wisdm_ends_where_somebody_or_something_else_begins_or_time_jumps(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    text = records(
        "1,Walking,1000,0.5,1,2", "1,Walking,2000,0.5,1,2",  # one recording
        "1,Walking,1500,0.5,1,2",  # time goes back
        "1,Walking,1000001500,0.5,1,2",  # a second later, which is no pause yet
        "1,Walking,2000001501,0.5,1,2",  # a second and a nanosecond later
        "1,Jogging,2000001502,0.5,1,2", "2,Jogging,2000001503,0.5,1,2",
    )  # fmt: skip
    local: Any = type("Local", (), {"paths": [Path("raw.txt")]})
    monkeypatch.setattr(wisdm, "contents", lambda files, name: {name: text.encode()})
    monkeypatch.setattr(wisdm, "PAUSE", 1_000_000_000)
    found = wisdm.read_raw(local)
    assert found.begin.tolist() == [0, 2, 4, 5, 6] and found.end.tolist() == [2, 4, 5, 6, 7]
    assert found.user.tolist() == [1, 1, 1, 1, 2]
    names = [wisdm.ACTIVITIES[label] for label in found.label]
    assert names == ["walking"] * 3 + ["jogging"] * 2
    assert found.signal.dtype == np.float32 and found.signal[0].tolist() == [0.5, 1.0, 2.0]
    assert found.hz == wisdm.HZ


@pytest.mark.parametrize(("good", "bad", "refused"), [(99, 1, False), (98, 2, True)])
def test_a_file_of_wisdm_with_many_malformed_records_is_refused(
    good: int, bad: int, refused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = good * records("1,Walking,1000,0.5,1,2") + bad * records("1,Walking,1000,0.5,1")
    local: Any = type("Local", (), {"paths": [Path("raw.txt")]})
    monkeypatch.setattr(wisdm, "contents", lambda files, name: {name: text.encode()})
    monkeypatch.setattr(wisdm, "SPOILT", 0.01)
    if refused:
        with pytest.raises(DataError, match=r"2 of 100 records of raw\.txt are malformed"):
            wisdm.read_raw(local)
    else:
        assert len(wisdm.read_raw(local).signal) == 99


def test_recordings_of_phones_and_watches_are_read_as_their_files_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(har, "cached_recordings", lambda *given: asked.append(given))
    monkeypatch.setattr(har, "hapt_compact", lambda local: "compact")
    monkeypatch.setattr(har, "hapt_raw", lambda local: "raw")
    har.hapt_recordings()
    har.wisdm51_recordings()
    (files, read, *known), watch = asked
    assert files is har.HAPT and known == [har.HAPT_ACTIVITIES, 50, "hapt"]
    assert watch == (har.WATCH, har.watch_compact, har.WATCH_ACTIVITIES, 20, "wisdm51_watch")
    form = lambda name: type("Local", (), {"source": type("Source", (), {"form": name})})
    assert read(form("compact")) == "compact" and read(form("raw")) == "raw"


@pytest.mark.parametrize("make", [har.hapt, har.wisdm51_watch])
def test_windows_are_cut_as_asked(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("hapt_recordings", "wisdm51_recordings"):
        monkeypatch.setattr(har, name, lambda: "recordings")
    monkeypatch.setattr(har, "window_pool", lambda *given: given)
    split = (0.5, 0.2, 0.3)
    assert make(9, 0.25, 3.0, split, 4) == ("recordings", 9, 0.25, 3.0, split, 4)
    assert make()[1] == {har.hapt: 128, har.wisdm51_watch: 52}[make]


def test_sentences_of_one_moment_stay_in_their_order_and_empty_ones_are_left_out() -> None:
    said: Any = [("2", ["late"]), ("1", ["z"]), ("1", []), ("1", ["a"])]
    assert tff.in_order(said) == [["z"], ["a"], ["late"]]


def test_small_deviations_are_scaled_and_constant_features_are_not() -> None:
    features = np.array([[1.0, 4.0, np.nan], [1.5, 4.0, np.nan], [9.0, 6.0, 3.0]], np.float32)
    found = wisdm.fill_and_scale(features, np.array([True, True, False]))
    assert found[:, 0].tolist() == [-1.0, 1.0, 31.0]  # mean 1.25, deviation 0.25
    assert found[:, 1].tolist() == [0.0, 0.0, 2.0]  # a constant keeps its scale
    assert found[:2, 2].tolist() == [0.0, 0.0] and found.dtype == np.float32
