"""Pictures of bytes have one scale, 0..1, from every source and beside whatever other fields; a
field of bytes that is none stays as it is, and a remark says so.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedblocks import Federation
from fedblocks.core.errors import DataError
from fedblocks.data import Parts
from fedblocks.data.partitions import iid

ROWS = 24
PICTURES = np.random.default_rng(0).integers(0, 256, (ROWS, 1, 2, 2)).astype("uint8")
PICTURES[0] = 255
FLAT = PICTURES.reshape(ROWS, 4)
OTHERS = np.random.default_rng(1).normal(size=(ROWS, 3)).astype("float32")
Y, USERS = np.arange(ROWS) % 2, np.arange(ROWS) % 3
WANTED = torch.from_numpy(FLAT) / 255  # what a net reads of a picture


def pixels(federation: Federation) -> torch.Tensor:
    """The numbers of the pictures, [rows, 4]; they are the first field."""
    return federation.x.flatten(1)[:, :4]


def beside(x: Any, **more: Any) -> dict[str, Any]:
    return {"x": x, "w": OTHERS, **more}


def hugging_face(**columns: Any) -> Any:
    datasets = pytest.importorskip("datasets", reason="pip install 'fedblocks[hub]'")
    values = {"label": Y, "user": USERS, **columns}
    feature = datasets.Array3D((1, 2, 2), "uint8")
    rows = datasets.Dataset.from_dict({n: np.asarray(v).tolist() for n, v in values.items()})
    return rows.cast_column("x", feature)


def parquet(path: Path, **columns: Any) -> Path:
    pa = pytest.importorskip("pyarrow", reason="pip install 'fedblocks[parquet]'")
    from pyarrow import parquet as files

    lists = {"w": pa.list_(pa.float32())}
    arrays = {n: pa.array(np.asarray(v).tolist(), lists.get(n)) for n, v in columns.items()}
    nested = pa.list_(pa.list_(pa.list_(pa.uint8(), 2)))
    if "x" in columns:
        kind = nested if columns["x"].ndim == 4 else pa.large_list(pa.uint8())
        arrays["x"] = pa.array(columns["x"].tolist(), kind)
    files.write_table(pa.table({**arrays, "label": Y, "user": USERS}), path)
    return path


@pytest.mark.parametrize("alone", [True, False])
def test_pictures_of_bytes_have_one_scale_from_every_source(alone: bool, tmp_path: Path) -> None:
    columns = {"x": PICTURES} if alone else beside(PICTURES)
    sources = {
        "arrays": Federation.from_users(PICTURES if alone else columns, Y, USERS),
        "hugging face": Federation.from_hf(hugging_face(**columns)),
        "parquet": Federation.from_parquet(parquet(tmp_path / "t.parquet", **columns)),
    }
    items: Any = [
        {n: torch.tensor(v[at]) for n, v in {**columns, "label": Y, "user": USERS}.items()}
        for at in range(ROWS)
    ]
    sources["torch"] = Federation.from_torch(items)
    for name, federation in sources.items():
        assert torch.equal(pixels(federation), WANTED), name
        assert not [text for text in federation.warnings() if "bytes" in text], name


def test_pictures_of_a_file_that_datasets_wrote_have_the_same_scale(tmp_path: Path) -> None:
    hugging_face(**beside(PICTURES)).to_parquet(tmp_path / "t.parquet")
    assert torch.equal(pixels(Federation.from_parquet(tmp_path / "t.parquet")), WANTED)


def test_bytes_of_a_list_column_alone_are_scaled_as_an_array_is(tmp_path: Path) -> None:
    path = parquet(tmp_path / "t.parquet", x=FLAT)
    assert torch.equal(Federation.from_parquet(path).x, Federation.from_users(FLAT, Y, USERS).x)
    assert torch.equal(pixels(Federation.from_parquet(path)), WANTED)


def test_a_list_column_that_is_bytes_in_one_file_only_is_refused(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow", reason="pip install 'fedblocks[parquet]'")
    from pyarrow import parquet as files

    parquet(tmp_path / "b.parquet", x=FLAT)
    columns = {"x": pa.array((FLAT / 255).tolist()), "label": Y, "user": USERS}
    files.write_table(pa.table(columns), tmp_path / "a.parquet")
    with pytest.raises(DataError, match=r'"x" is numbers in .*bytes \(uint8\) in'):
        Federation.from_parquet(tmp_path)


def test_a_list_that_lacks_a_number_is_told_as_such(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow", reason="pip install 'fedblocks[parquet]'")
    from pyarrow import parquet as files

    rows = [[1, None], *[[1, 2]] * (ROWS - 1)]
    x = pa.array(rows, pa.list_(pa.uint8()))
    files.write_table(pa.table({"x": x, "label": Y, "user": USERS}), tmp_path / "t.parquet")
    with pytest.raises(DataError, match=r"not finite|not a number|no value"):
        Federation.from_parquet(tmp_path / "t.parquet")


def by_two(y: Any) -> Any:
    return iid(y, 2)


def test_a_field_of_bytes_that_is_no_picture_stays_as_it_is_and_a_remark_says_so(
    tmp_path: Path,
) -> None:
    fields = beside(FLAT)
    part = Parts(train=(fields, Y))
    kept = {
        "users": Federation.from_users(fields, Y, USERS),
        "alone": Federation.from_users({"x": FLAT}, Y, USERS),
        "parts": Federation.from_parts([part, part]),
        "pools": Federation.from_pools((fields, Y), (fields, Y), by_two),
        "parquet": Federation.from_parquet(parquet(tmp_path / "t.parquet", **fields)),
    }
    for name, federation in kept.items():
        assert pixels(federation).max() == 255, name
        said = f'field "x" holds bytes as they are, {FLAT.min()} to 255: give fractions (x / 255)'
        assert [text for text in federation.warnings() if text.startswith(said)], name
    kept["users"].save(tmp_path / "f.npz")
    loaded = Federation.load(tmp_path / "f.npz")
    assert loaded.warnings() == kept["users"].warnings()
    of_places = Federation.from_users((FLAT, OTHERS), Y, USERS)
    assert any('field "input 0" holds bytes' in text for text in of_places.warnings())


@pytest.mark.parametrize("x", [(FLAT > 9).astype("uint8"), FLAT.astype("int64"), FLAT / 255])
def test_masks_and_other_numbers_are_not_remarked_on(x: Any) -> None:
    federation = Federation.from_users(beside(x), Y, USERS)
    assert not [text for text in federation.warnings() if "bytes" in text]


def test_a_transform_of_a_data_set_of_hugging_face_is_not_left_out_in_silence() -> None:
    datasets = pytest.importorskip("datasets", reason="pip install 'fedblocks[hub]'")

    def nothing(rows: Any) -> Any:
        return {**rows, "w": [[0.0] * 3 for _ in rows["w"]]}

    columns = {"w": OTHERS.tolist(), "label": Y, "user": USERS}
    plain = datasets.Dataset.from_dict(columns)
    moved = plain.with_transform(nothing)
    with pytest.raises(DataError, match=r"a transform .* which from_hf does not run") as told:
        Federation.from_hf(moved)
    assert "from_torch(data, label=..., user=...)" in told.value.fix and "map" in told.value.fix
    assert not Federation.from_torch(moved).x.any()
    done = Federation.from_hf(moved.with_format(None).map(nothing, batched=True))
    assert not done.x.any()
    assert Federation.from_hf(plain.with_format("torch")).x.any()
