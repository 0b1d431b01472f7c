"""Columns of targets: one, several, and names with commas."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow
import pytest
from pyarrow import parquet

import fedblocks as fb

REGRESSION = fb.Task("regression")


@pytest.fixture
def clinic(tmp_path: Path) -> Path:
    """Two columns of targets, one of whose names has a comma."""
    lines = [f"{row},{row * 2},{row * 3},u{row % 2}" for row in range(20)]
    path = tmp_path / "clinic.csv"
    path.write_text("\n".join(['age,"crp, mg/l",weight,user', *lines]))
    return path


@pytest.mark.parametrize("label", ["crp, mg/l", ["crp, mg/l"]])
def test_the_name_of_a_label_may_have_a_comma(label: Any, clinic: Path) -> None:
    data = fb.Federation.from_csv(clinic, label, task=REGRESSION)
    assert data.about["columns"] == ["age", "weight"]
    assert data.about["class_names"] == ["crp, mg/l"]
    assert data.y[:, 0].sort().values.tolist() == [2.0 * row for row in range(20)]


@pytest.mark.parametrize(
    ("label", "columns"),
    [
        ("weight, age", ["weight", "age"]),
        (["crp, mg/l", "age"], ["crp, mg/l", "age"]),
        (("age",), ["age"]),
    ],
)
def test_labels_are_columns_with_commas_between_them_or_a_list(
    label: Any, columns: list[str], clinic: Path
) -> None:
    data = fb.Federation.from_csv(clinic, label, task=REGRESSION)
    assert data.about["class_names"] == columns and data.classes == len(columns)
    assert not {*columns} & {*data.about["columns"]}


def test_wrong_lists_of_labels_are_refused(clinic: Path) -> None:
    with pytest.raises(fb.DataError, match="2 columns, but classification has one label"):
        fb.Federation.from_csv(clinic, ["age", "weight"])
    with pytest.raises(fb.DataError, match="0 columns"):
        fb.Federation.from_csv(clinic, [], task=REGRESSION)
    with pytest.raises(fb.DataError, match="age, age has a column twice"):
        fb.Federation.from_csv(clinic, ["age", "age"], task=REGRESSION)
    with pytest.raises(fb.DataError, match='no column "crp"'):
        fb.Federation.from_csv(clinic, "crp, age", task=REGRESSION)


def test_a_class_may_stand_in_a_column_with_a_comma(clinic: Path) -> None:
    text = clinic.read_text().replace("weight", '"state, now"')
    clinic.write_text(text)
    assert fb.Federation.from_csv(clinic, "state, now").about["columns"] == ["age", "crp, mg/l"]
    assert fb.Federation.from_csv(clinic, ["state, now"]).classes == 58  # 3 * 19 + 1


@pytest.mark.parametrize("label", ['"crp, mg/l"', '["crp, mg/l", "age"]'])
def test_a_configuration_names_such_columns(label: str, clinic: Path) -> None:
    toml = clinic.with_suffix(".toml")
    toml.write_text(
        f'rounds = 1\n[data]\nname = "csv"\noptions = {{path = "{clinic}", label = {label}}}\n'
        'partition = {name = "by_user"}\n[task]\nkind = "regression"\n[net]\nname = "mlp"\n'
        '[method]\nname = "local"\nlr = 1e-6\n'
    )
    run = fb.run(fb.read_config(str(toml)), clinic.with_name("run"))
    assert run.status == "finished"


def test_a_parquet_file_has_such_columns_too(tmp_path: Path) -> None:
    columns = {"age": range(8), "crp, mg/l": range(8), "user": ["a", "b"] * 4}
    parquet.write_table(
        pyarrow.table({k: list(v) for k, v in columns.items()}), tmp_path / "t.parquet"
    )
    for label in ("crp, mg/l", ["crp, mg/l"]):
        data = fb.Federation.from_parquet(tmp_path / "t.parquet", label, task=REGRESSION)
        assert data.about["class_names"] == ["crp, mg/l"] and data.about["columns"] == ["age"]
