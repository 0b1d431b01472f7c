"""Configurations and environments that Python itself cannot hold are mistakes in a file."""

from pathlib import Path
from typing import Any

import pytest

from fedblocks.config.model import Config
from fedblocks.config.presets import read_config
from fedblocks.config.sources import parse_change, read_toml
from fedblocks.core.errors import RunFolderError, UserError
from fedblocks.runs.storage.code_record import read_entries
from fedblocks.runs.storage.folder import RunFolder

Table = dict[str, Any]
EXTREMES = {
    "digits": f"rounds = {'9' * 5000}",
    "hexadecimal": f"rounds = 0x{'f' * 5000}",
    "64 bits": f"rounds = {2**63}",
    "brackets": f"rounds = {'[' * 5000}{']' * 5000}",
    "tables": f"rounds = {'{a=' * 900}1{'}' * 900}",
    "dots": f"{'a.' * 5000}a = 1",
    "headers": f"[{'a.' * 5000}a]",
}


@pytest.mark.parametrize("text", EXTREMES.values(), ids=EXTREMES)
def test_a_file_that_python_cannot_hold_is_no_toml(tmp_path: Path, text: str) -> None:
    path = tmp_path / "a.toml"
    path.write_text(text)
    with pytest.raises(UserError, match="this is not TOML"):
        read_toml(path)
    with pytest.raises(UserError):
        read_config(str(path))
    if text.startswith("rounds"):
        with pytest.raises(UserError, match="is not a TOML value"):
            parse_change(text.replace(" ", ""))


def test_the_largest_number_that_has_a_place_is_read(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text(f"seed = {2**63 - 1}")
    assert read_toml(tmp_path / "a.toml")[0] == {"seed": 2**63 - 1}


@pytest.mark.parametrize("text", ["[]", "3", '{"command": 5}', '{"command": [3]}', "[" * 100_000])
def test_a_damaged_environment_is_named(tmp_path: Path, text: str) -> None:
    with RunFolder.create(tmp_path / "run", {"seed": 1}, {}) as folder:
        (folder.path / "env.json").write_text(text)
        with pytest.raises(RunFolderError, match=r"cannot read .*env\.json"):
            _ = folder.environment


@pytest.mark.parametrize(
    "text", ["{}", "[3]", '[{"file": "a.py"}]', '[{"defines": 3}]', "[" * 10**5]
)
def test_a_damaged_record_of_code_names_none(tmp_path: Path, text: str) -> None:
    (tmp_path / "code.json").write_text(text)
    assert read_entries(tmp_path) == []


@pytest.mark.parametrize(
    ("field", "value", "most"), [("processes", 100_000, 256), ("threads", 10**6, 1024)]
)
def test_more_processes_or_threads_than_any_machine_has_are_refused(
    small: Table, field: str, value: int, most: int
) -> None:
    with pytest.raises(UserError, match=f"{field}.*{value}.*above {most}"):
        Config.of(small | {field: value})
    assert getattr(Config.of(small | {field: most}), field) == most
