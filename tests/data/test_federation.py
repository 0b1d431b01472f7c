"""Federations: how data go in, what is refused, and what stays the same."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedblocks.core.errors import DataError
from fedblocks.data import (
    IGNORE,
    DataPool,
    Federation,
    Parts,
    Rows,
    digits,
    gaussian,
    markov,
    waves,
)
from fedblocks.data.partitions import by_user, classes, dirichlet_labels, iid
from fedblocks.data.splits import split_rows


@pytest.fixture(scope="module")
def federation() -> Federation:
    return Federation.from_arrays(
        *digits(), lambda y: dirichlet_labels(y, 12, alpha=0.5, seed=3, min_size=20)
    )


def test_parts_are_disjoint_and_cover_the_partition(federation: Federation) -> None:
    index = np.concatenate([rows.index for rows in federation.parts.values()])
    assert sorted(index.tolist()) == list(range(1797))
    partition = dirichlet_labels(digits()[1], 12, alpha=0.5, seed=3, min_size=20)
    for client in range(12):
        own = np.concatenate([rows[client] for rows in federation.parts.values()])
        assert sorted(own.tolist()) == sorted(partition.rows[client].tolist())
    assert federation.about["partition_hash"] == partition.hash()


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(0, 40), min_size=1, max_size=6), st.integers(0, 1000))
def test_a_split_has_the_asked_sizes_and_always_a_training_row(sizes: list[int], seed: int) -> None:
    rows = Rows.by_owner(np.repeat(np.arange(len(sizes)), sizes), len(sizes))
    train, validation, test = split_rows(rows, (0.7, 0.1, 0.2), seed)
    assert sorted(np.concatenate([train.index, validation.index, test.index])) == list(
        range(sum(sizes))
    )
    for client, size in enumerate(sizes):
        assert (len(train[client]) > 0) == (size > 0)
        assert (len(test[client]) > 0) == (size > 1)
        assert (
            abs(len(test[client]) - 0.2 * size) <= 0.8
            and abs(len(validation[client]) - 0.1 * size) < 1
        )


def test_a_stratified_split_keeps_label_proportions_in_every_part() -> None:
    x, y = torch.zeros(1000, 1), torch.tensor([0] * 700 + [1] * 200 + [2] * 100)
    built = Federation.from_arrays(x, y, iid(y, 2), stratified=True, seed=5)
    for client in range(2):
        whole = np.concatenate([rows[client] for rows in built.parts.values()])
        share = np.bincount(y[whole], minlength=3) / len(whole)
        for rows in built.parts.values():
            assert (
                np.abs(np.bincount(y[rows[client]], minlength=3) - share * len(rows[client])).max()
                <= 2
            )


def test_the_hash_is_a_function_of_content_only(federation: Federation) -> None:
    again = Federation.from_arrays(
        *digits(), lambda y: dirichlet_labels(y, 12, alpha=0.5, seed=3, min_size=20)
    )
    other = Federation.from_arrays(
        *digits(), lambda y: dirichlet_labels(y, 12, alpha=0.5, seed=4, min_size=20)
    )
    resplit = Federation.from_arrays(
        *digits(), lambda y: dirichlet_labels(y, 12, alpha=0.5, seed=3, min_size=20), seed=1
    )
    assert federation.hash() == again.hash() == replace(federation, about={}).hash()
    assert len({federation.hash(), other.hash(), resplit.hash()}) == 3


@pytest.mark.parametrize("change", ["x", "y", "train", "validation", "test", "classes"])
def test_the_hash_sees_every_part_of_the_content(federation: Federation, change: str) -> None:
    x, y = federation.x.clone(), federation.y.clone()
    x[5, 0, 3, 3] += 1e-6
    y[5] = (y[5] + 1) % 10
    rows = {part: rows.renumber(rows.index[::-1]) for part, rows in federation.parts.items()}
    changed = {"x": x, "y": y, "classes": 11, **rows}[change]
    assert replace(federation, **{change: changed}).hash() != federation.hash()


def test_the_hash_is_the_same_on_every_platform() -> None:
    # the recipe spelled out: for each array a JSON line of name, type and shape, then its
    # little-endian bytes
    tiny = Federation(
        torch.arange(4.0)[:, None], torch.tensor([0, 1, 0, 1]), *[Rows.of([[0, 1], [2]])] * 3, 2
    )
    recipe = b""
    for name, array, kind, shape in (
        ("x", np.arange(4, dtype="<f4"), "<f4", [4, 1]),
        ("y", np.array([0, 1, 0, 1], "<i8"), "<i8", [4]),
        ("classes", np.array(2, "<i8"), "<i8", []),
        *(
            (f"{part}_{what}", np.array(values, "<i8"), "<i8", [3])
            for part in ("train", "validation", "test")
            for what, values in (("index", [0, 1, 2]), ("offsets", [0, 2, 3]))
        ),
    ):
        recipe += json.dumps([name, kind, shape]).encode() + array.tobytes()
    assert tiny.hash() == hashlib.sha256(recipe).hexdigest()


def test_saving_and_loading_keeps_everything(federation: Federation, tmp_path: Path) -> None:
    tagged = replace(federation, tags={"group": np.arange(12) % 3})
    for name, each in {"all": tagged, "some": tagged.subset([7, 2]), "named": named()}.items():
        each.save(tmp_path / f"{name}.npz")
        loaded = Federation.load(tmp_path / f"{name}.npz")
        assert loaded.hash() == each.hash()
        assert list(loaded.names) == list(each.names) and loaded.about == each.about
        assert {k: v.tolist() for k, v in loaded.tags.items()} == {
            k: v.tolist() for k, v in each.tags.items()
        }
    assert sorted(path.name for path in tmp_path.iterdir()) == ["all.npz", "named.npz", "some.npz"]


def test_files_that_are_no_federation_are_refused(federation: Federation, tmp_path: Path) -> None:
    (tmp_path / "text.npz").write_text("hello")
    np.savez(tmp_path / "other.npz", a=np.arange(3))
    iid(np.arange(9), 3).save(tmp_path / "partition.npz")
    federation.save(tmp_path / "cut.npz")
    (tmp_path / "cut.npz").write_bytes((tmp_path / "cut.npz").read_bytes()[:-5000])
    for name in ("missing", "text", "other", "partition", "cut"):
        with pytest.raises(DataError) as caught:
            Federation.load(tmp_path / f"{name}.npz")
        assert caught.value.fix
    with pytest.raises(DataError, match="cannot write"):
        federation.save(tmp_path / "no" / "folder.npz")


def named() -> Federation:
    return Federation.from_users(
        np.arange(60.0)[:, None], np.arange(60) % 3, np.repeat(["amy", "bob", "cid"], 20)
    )


def test_users_become_clients_with_their_names() -> None:
    built = named()
    assert tuple(built.names) == ("amy", "bob", "cid") and built.classes == 3
    own = np.concatenate([rows[1] for rows in built.parts.values()])
    assert sorted(built.x[own, 0].tolist()) == list(range(20, 40))


def test_an_npz_file_goes_in_by_user_or_by_partition(tmp_path: Path) -> None:
    x, y = (
        np.random.default_rng(0).integers(0, 256, (40, 3, 4, 4)).astype(np.uint8),
        np.arange(40) % 4,
    )
    np.savez(tmp_path / "a.npz", x=x, y=y, user=np.repeat([3, 9], 20), label2=y // 2)
    built = Federation.from_npz(tmp_path / "a.npz")
    assert tuple(built.names) == ("3", "9")
    assert built.x.dtype == torch.float32 and torch.equal(
        built.x, torch.from_numpy(x).float() / 255
    )
    other = Federation.from_npz(
        tmp_path / "a.npz", y="label2", partition=lambda labels: iid(labels, 5)
    )
    assert other.clients == 5 and other.classes == 2
    with pytest.raises(DataError, match="has no array person") as caught:
        Federation.from_npz(tmp_path / "a.npz", user="person")
    assert "label2" in caught.value.fix


def test_object_arrays_are_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=np.array([{"a": 1}], dtype=object), y=np.array([0]))
    with pytest.raises(DataError, match="cannot be read"):
        Federation.from_npz(tmp_path / "a.npz", partition=lambda y: iid(y, 1))


def test_a_torch_data_set_goes_in() -> None:
    x, y = digits()
    dataset = torch.utils.data.TensorDataset(x[:100], y[:100])
    built = Federation.from_torch(dataset, lambda labels: iid(labels, 4))
    assert torch.equal(built.x, x[:100]) and torch.equal(built.y, y[:100]) and built.clients == 4


def test_clients_can_bring_their_own_parts() -> None:
    one = Parts((np.ones((3, 2)), [0, 1, 0]), test=(np.full((2, 2), 2.0), [1, 1]))
    two = Parts((np.full((1, 2), 3.0), [1]), validation=(np.full((1, 2), 4.0), [0]))
    built = Federation.from_parts([one, two], names=["left", "right"])
    assert {part: rows.sizes.tolist() for part, rows in built.parts.items()} == {
        "train": [3, 1],
        "validation": [0, 1],
        "test": [2, 0],
    }
    assert built.x[built.test[0]].tolist() == [[2, 2], [2, 2]] and built.x[
        built.validation[1]
    ].tolist() == [[4, 4]]
    with pytest.raises(DataError, match="right \\(train\\)"):
        Federation.from_parts([one, Parts((np.ones((1, 3)), [1]))], names=["left", "right"])


def test_official_pools_are_divided_by_the_same_shares() -> None:
    pools = {n: (torch.zeros(10 * n, 2), torch.arange(10).repeat_interleave(n)) for n in (400, 100)}
    built = Federation.from_pools(
        pools[400], pools[100], lambda y: classes(y, 50, 2), validation=pools[100]
    )
    assert [set(rows.sizes.tolist()) for rows in built.parts.values()] == [{80}, {20}, {20}]
    for client in range(50):
        held = [set(built.y[rows[client]].tolist()) for rows in built.parts.values()]
        assert held[0] == held[1] == held[2] and len(held[0]) == 2
    ranges = [(rows.index.min(), rows.index.max()) for rows in built.parts.values()]
    assert ranges == [(0, 3999), (4000, 4999), (5000, 5999)]
    assert (
        Federation.from_pools(pools[400], pools[100], lambda y: iid(y, 5)).validation.sizes.tolist()
        == [0] * 5
    )


def test_features_signals_and_tokens_go_in() -> None:
    for pool, shape in ((gaussian(), [20]), (waves(), [3, 64])):
        built = Federation.from_arrays(pool.x, pool.y, lambda y: dirichlet_labels(y, 8))
        assert built.describe()["input"] == {"shape": shape, "type": "float32"}
    pool = markov(users=6)
    built = Federation.from_users(pool.x, pool.y, pool.users, classes=pool.classes)
    assert built.describe()["input"] == {"shape": [20], "type": "int64"}
    assert built.describe()["label"] == {"shape": [20], "classes": 50}
    assert (built.y == IGNORE).any() and built.clients == 6


def spoilt(federation: Federation, what: str) -> Federation:
    x, y = federation.x.clone(), federation.y.clone()
    row = federation.test[4][0]
    x[row, 0, 2, 2] = {"nan": float("nan"), "inf": -float("inf")}.get(what, 0.0)
    y[row] = {"high": 10, "low": -1}.get(what, int(y[row]))
    index = federation.test.index.copy()
    index[federation.test.offsets[4]] = {"far": 1797, "negative": -1}.get(what, row)
    return replace(federation, x=x, y=y, test=federation.test.renumber(index))


@pytest.mark.parametrize("what", ["nan", "inf", "high", "low", "far", "negative"])
def test_bad_rows_are_refused_with_the_name_of_their_client(
    federation: Federation, what: str
) -> None:
    with pytest.raises(
        DataError, match=r'(row \d+.*\(clients: "client-4"\)|at "client-4")[;\n]'
    ) as caught:
        spoilt(federation, what).check()
    assert caught.value.fix


def test_what_is_not_bad_is_accepted(federation: Federation) -> None:
    scored = replace(federation, y=torch.where(federation.y == 3, IGNORE, federation.y))
    assert spoilt(federation, "nothing").check() and scored.check()
    # finite, though its sum is not
    huge = replace(federation, x=torch.full_like(federation.x, 3e38))
    assert huge.check() is huge


def test_bad_rows_that_nobody_holds_do_not_matter(federation: Federation) -> None:
    others = [c for c in range(12) if c != 4]
    assert spoilt(federation, "nan").subset(others).check()
    with pytest.raises(DataError):
        spoilt(federation, "nan").subset([4]).check()


def test_empty_clients_are_refused_unless_allowed() -> None:
    x, y = torch.zeros(4, 1), torch.tensor([0, 1, 0, 1])
    rows = Rows.of([[0, 1], [], [2, 3], []])
    built = Federation(x, y, rows, Rows.none(4), Rows.none(4), 2)
    with pytest.raises(DataError, match='no training rows at "client-1", "client-3"'):
        built.check()
    assert built.check(allow_empty=True) is built


def test_shapes_that_do_not_fit_are_refused() -> None:
    x, y, rows = torch.zeros(4, 1), torch.tensor([0, 1, 0, 1]), Rows.of([[0, 1], [2, 3]])
    good = Federation(x, y, rows, rows, rows, 2)
    changes = [
        {"y": y[:3]},
        {"names": ("a",)},
        {"test": Rows.none(3)},
        {"tags": {"group": np.arange(3)}},
    ]
    for change in [*changes, {"y": y.float()}, {"classes": 0}]:
        with pytest.raises(DataError):
            replace(good, **change)
    with pytest.raises(DataError, match='two clients are called "a"'):
        replace(good, names=("a", "a")).check()
    with pytest.raises(DataError, match="split"):
        Federation.from_arrays(x, y, iid(y, 2), split=(0.5, 0.1, 0.1))
    with pytest.raises(DataError, match="names row 5"):
        Federation.from_arrays(x, y, iid(np.zeros(6, int), 2))


def test_warnings_name_clients_that_are_easily_overlooked() -> None:
    y = torch.tensor([0] * 30 + [0, 1] * 15 + [1])
    built = Federation.from_arrays(torch.zeros(61, 1), y, by_user([0] * 30 + [1] * 30 + [2]))
    assert built.warnings(few=10) == [
        '2 clients hold one class only: "0", "2"',
        '1 client has fewer than 10 training rows: "2"',
        '1 client has no test rows: "2"',
    ]
    leaking = replace(built, test=built.train)
    assert (
        leaking.warnings(few=1)[-1]
        == f"{len(built.train.index)} rows are both trained and tested on"
    )


def test_a_subset_keeps_names_tags_and_rows(federation: Federation) -> None:
    tagged = replace(federation, tags={"group": np.arange(12) % 5})
    some = tagged.subset([9, 1])
    assert list(some.names) == ["client-9", "client-1"] and some.tags["group"].tolist() == [4, 1]
    assert [rows.tolist() for rows in some.test] == [
        federation.test[9].tolist(),
        federation.test[1].tolist(),
    ]
    compact = some.compact()
    assert len(compact.x) == sum(len(rows.index) for rows in some.parts.values()) < len(some.x)
    for part, rows in some.parts.items():
        assert torch.equal(compact.x[compact.parts[part][1]], some.x[rows[1]])
        assert torch.equal(compact.y[compact.parts[part][0]], some.y[rows[0]])
    with pytest.raises(DataError, match="no client 12 among 12"):
        federation.subset([12])


def test_inputs_labels_and_users_of_unlike_length_are_refused_wherever_they_come_from(
    federation: Federation, tmp_path: Path
) -> None:
    x, y, users = np.ones((200, 4), np.float32), np.arange(200) % 3, np.arange(200) % 5
    np.savez(tmp_path / "labels.npz", x=x, y=y[:195], user=users)
    np.savez(tmp_path / "users.npz", x=x, y=y, user=users[:195])
    wrong: dict[str, Callable[[], object]] = {
        "x has 200 rows and y has 195": lambda: Federation.from_npz(tmp_path / "labels.npz"),
        "x has 200 rows and users has 195": lambda: Federation.from_npz(tmp_path / "users.npz"),
        "x has 1797 rows and y has 1790": lambda: replace(federation, y=federation.y[:1790]),
        "x has 40 rows and coarse has 39": lambda: DataPool(
            torch.ones(40, 2), torch.ones(40), 2, coarse=y[:39]
        ),
        "there are 12 clients, but tag group has 5 entries": lambda: replace(
            federation, tags={"group": np.arange(5)}
        ),
    }
    for message, make in wrong.items():
        with pytest.raises(DataError, match=message):
            make()


def test_what_cannot_be_trained_on_is_told_by_row_and_client() -> None:
    x, y, users = np.ones((60, 4), np.float32), np.arange(60) % 3, np.arange(60) % 5
    x[17, 3] = x[23, 0] = x[0, 1] = np.nan
    with pytest.raises(
        DataError,
        match=r"row 0, column 1 is nan, and 2 more values \(clients: "
        r'"0", "2", "3"\)',
    ):
        Federation.from_users(x, y, users)
    held = [rows[rows > 0] for rows in by_user(users).rows]  # nobody has the first row
    with pytest.raises(
        DataError,
        match=r"row 17, column 3 is nan, and 1 more value \(clients: "
        r'"client-2", "client-3"\)',
    ):
        Federation.from_arrays(x, y, held)
    y[19] = 7
    with pytest.raises(
        DataError, match=r'labels outside 0\.\.2: row 19 has label 7 \(clients: "4"\)'
    ):
        Federation.from_users(np.ones((60, 4), np.float32), y, users, classes=3)


def test_held_out_clients_are_the_rest(federation: Federation) -> None:
    seen, unseen = federation.hold_out(0.25, seed=1)
    assert (seen.clients, unseen.clients) == (9, 3)
    assert sorted([*seen.names, *unseen.names]) == sorted(federation.names)
    assert list(federation.hold_out(0.25, seed=1)[1].names) == list(unseen.names)
    for fraction in (0.0, 0.01, 1.0):
        with pytest.raises(DataError):
            federation.hold_out(fraction)


def test_previews_and_descriptions_are_plain_json(federation: Federation) -> None:
    lines = federation.preview()
    assert [line["train"] for line in lines] == federation.train.sizes.tolist()
    labels = federation.y[federation.train[2]]
    counts = torch.bincount(labels)
    assert lines[2]["classes"] == int((counts > 0).sum())
    assert lines[2]["top_share"] == pytest.approx(float(counts.max()) / len(labels), abs=1e-4)
    assert federation.preview(most=3) == lines[:3]
    about = json.loads(json.dumps(federation.describe()))
    assert about["clients"] == 12 and about["train"]["total"] == len(federation.train.index)


def test_a_federation_can_move_to_a_device(federation: Federation) -> None:
    moved = federation.to("meta")
    assert moved.x.device.type == moved.y.device.type == "meta" and moved.train is federation.train


def test_a_data_set_that_cannot_be_stacked_says_why() -> None:
    ragged = [(torch.zeros(2), 0), (torch.zeros(3), 1)]
    for bad in ([], ragged, [(None, 0)]):
        with pytest.raises(DataError) as caught:
            Federation.from_torch(bad, lambda labels: iid(labels, 1))
        assert caught.value.fix


def test_text_cannot_be_an_input() -> None:
    with pytest.raises(DataError, match="give numbers"):
        Federation.from_arrays(np.array(["a", "b"]), [0, 1], iid([0, 1], 1))


def test_a_description_counts_tags(federation: Federation) -> None:
    tagged = replace(federation, tags={"group": np.arange(12) % 5})
    assert tagged.describe()["tags"] == {"group": {"0": 3, "1": 3, "2": 2, "3": 2, "4": 2}}
    assert tagged.preview(most=2)[1]["group"] == 1
