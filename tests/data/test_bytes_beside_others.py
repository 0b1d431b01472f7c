"""Bytes become 0..1 and other numbers stay: where both stand in one place of a federation, its
inputs would have two scales, and it is refused.
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

BYTES = np.random.default_rng(0).integers(0, 256, (20, 1, 4, 4)).astype("uint8")
FLOATS = BYTES.astype("float32")
Y = np.arange(20) % 2


@pytest.mark.parametrize("others", [FLOATS, FLOATS.astype("float64"), torch.from_numpy(FLOATS)])
def test_clients_of_which_some_bring_bytes_are_refused(others: Any) -> None:
    first, second = Parts(train=(BYTES, Y)), Parts(train=(others, Y))
    with pytest.raises(DataError, match=r"client-0 \(train\).*bytes.*client-1 \(train\)") as told:
        Federation.from_parts([second, first][::-1])
    assert "divided by 255" in str(told.value) and 'astype("float32")' in told.value.fix
    assert Federation.from_parts([first, first]).x.max() == 1
    assert Federation.from_parts([second, second]).x.max() == 255


def test_parts_of_one_client_of_which_one_is_of_bytes_are_refused() -> None:
    with pytest.raises(DataError, match=r"client-0 \(test\) holds bytes"):
        Federation.from_parts([Parts(train=(FLOATS, Y), test=(BYTES, Y))])


def test_a_part_without_rows_has_no_type_that_matters() -> None:
    empty = np.zeros((0, 1, 4, 4)), np.zeros(0, int)
    assert Federation.from_parts([Parts(train=(BYTES, Y), test=empty)]).x.max() == 1


def test_numbers_that_are_no_bytes_may_be_of_several_widths() -> None:
    wide = Parts(train=(FLOATS.astype("float64"), Y))
    assert Federation.from_parts([Parts(train=(FLOATS, Y)), wide]).x.max() == 255


def test_lists_and_tables_of_pandas_are_looked_at_by_their_numbers() -> None:
    pandas = pytest.importorskip("pandas", reason="pip install pandas")
    of_bytes = pandas.DataFrame(BYTES.reshape(20, 16))
    with pytest.raises(DataError, match="holds float64"):
        Federation.from_parts([Parts(train=(of_bytes, Y)), Parts(train=(of_bytes / 1.0, Y))])
    with pytest.raises(DataError, match="holds float32"):
        Federation.from_parts([Parts(train=([*BYTES], Y)), Parts(train=([*FLOATS], Y))])


@pytest.mark.parametrize("x", [[[1.0], [1.0, 2.0]], {"a": [[[1.0]], [[1.0, 2.0]]], "b": Y[:2]}])
def test_rows_of_unequal_length_are_told_as_such(x: Any) -> None:
    with pytest.raises(DataError, match="unequal lengths"):
        Federation.from_parts([Parts(train=(x, Y[:2]))])


def test_pools_of_which_one_is_of_bytes_are_refused() -> None:
    with pytest.raises(DataError, match=r"train pool holds bytes .* test pool"):
        Federation.from_pools((BYTES, Y), (FLOATS, Y), iid(Y, clients=2))


def test_a_field_of_several_is_refused_by_its_name() -> None:
    def part(image: Any) -> Parts:
        return Parts(train=({"image": image, "age": Y.astype("float32")}, Y))

    with pytest.raises(DataError, match=r'client-1 \(train\), field "image", holds bytes'):
        Federation.from_parts([part(FLOATS), part(BYTES)])


def test_rows_of_a_list_of_which_some_are_bytes_are_refused() -> None:
    with pytest.raises(DataError, match=r"row 1 of x holds bytes .* row 0 of x"):
        Federation.from_users([FLOATS[0], BYTES[1], *FLOATS[2:]], Y, Y)
    fields = {"image": [*BYTES[:19], FLOATS[19]], "age": Y}
    with pytest.raises(DataError, match=r"row 0 of image holds bytes .* row 19 of image"):
        Federation.from_users(fields, Y, Y)


def test_labels_of_a_list_may_be_bytes_beside_whole_numbers() -> None:
    labels = [np.uint8(1), *Y[1:].tolist()]
    assert Federation.from_users(FLOATS, labels, Y).y[0] == 1


def test_items_of_a_torch_data_set_of_which_some_are_bytes_are_refused() -> None:
    by_two = lambda y: iid(y, 2)
    items = [(torch.from_numpy(FLOATS[i] if i == 7 else BYTES[i]), int(Y[i])) for i in range(20)]
    with pytest.raises(DataError, match=r"item 0 holds bytes .* item 7"):
        Federation.from_torch(items, by_two)  # type: ignore[arg-type]
    named = [{"image": x, "age": torch.tensor(1.0), "label": y} for x, y in items]
    with pytest.raises(DataError, match=r"image of item 0 holds bytes"):
        Federation.from_torch(named, by_two)  # type: ignore[arg-type]


def write(path: Path, **columns: Any) -> None:
    pa = pytest.importorskip("pyarrow", reason="pip install 'fedblocks[parquet]'")
    from pyarrow import parquet

    parquet.write_table(pa.table({"label": Y, "user": Y, **columns}), path)


@pytest.mark.parametrize("turned", [False, True])
def test_files_of_a_folder_of_which_one_has_bytes_are_refused(turned: bool, tmp_path: Path) -> None:
    first, second = ("b", "a") if turned else ("a", "b")
    write(tmp_path / f"{first}.parquet", light=BYTES[:, 0, 0, 0])
    write(tmp_path / f"{second}.parquet", light=FLOATS[:, 0, 0, 0])
    with pytest.raises(DataError, match=r'"light" is .*bytes \(uint8\) in') as told:
        Federation.from_parquet(tmp_path)
    assert "one type" in told.value.fix


def test_files_of_a_folder_whose_users_are_words_and_numbers_are_refused(tmp_path: Path) -> None:
    """Read as the first file has them, "01" would be 1."""
    write(tmp_path / "a.parquet", light=FLOATS[:, 0, 0, 0])
    write(tmp_path / "b.parquet", light=FLOATS[:, 0, 0, 0], user=["01", "2"] * 10)
    with pytest.raises(DataError, match=r'"user" is numbers in .*a\.parquet, and words in'):
        Federation.from_parquet(tmp_path)


def test_files_of_a_folder_may_differ_in_the_width_of_labels_and_in_what_is_not_read(
    tmp_path: Path,
) -> None:
    write(tmp_path / "a.parquet", light=FLOATS[:, 0, 0, 0], note=Y, label=Y.astype("uint8"))
    write(tmp_path / "b.parquet", light=FLOATS[:, 0, 0, 0].astype("float64"), note=["x"] * 20)
    assert len(Federation.from_parquet(tmp_path, columns="light").x) == 40
