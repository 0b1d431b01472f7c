"""Examples in the documentation run as they stand."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from pydantic import BaseModel

from fedblocks import read_config
from fedblocks.cli import main
from fedblocks.config.model import Config
from fedblocks.config.sections import (
    CheckpointSection,
    CohortSection,
    DataSection,
    EvaluationSection,
    FaultsSection,
    TaskSection,
)

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()


def blocks(page: str) -> list[str]:
    """The complete Python examples of a page: those that import what they use."""
    actual = re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)
    return [code for code in actual if "import" in code]


def test_the_readme_compares_methods_with_the_net_and_the_data_of_its_first_example(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    scope: dict[str, object] = {"__name__": "example"}
    first, second, *_ = re.findall(
        r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL
    )
    exec(compile(first + second, "README.md", "exec"), scope)
    assert "pfedmb" in capsys.readouterr().out and (tmp_path / "runs/first/config.toml").is_file()


@pytest.mark.parametrize("number", range(3))
def test_an_example_of_the_readme_runs(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    exec(
        compile(blocks("README.md")[number], f"README.md, example {number + 1}", "exec"),
        {"__name__": "example"},
    )


def test_the_readme_shows_the_plan_that_the_command_prints(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["plan", "pfedmb"])
    assert not stop.value.code
    fences = re.split(r"^```.*\n", (ROOT / "README.md").read_text(), flags=re.MULTILINE)[1::2]
    (shown,) = (text for text in fences if text.startswith(" block"))
    assert lines(capsys.readouterr().out) == lines(shown)


def lines(text: str) -> list[str]:
    """Lines that are not empty, without spaces at their ends."""
    return [line.rstrip() for line in text.splitlines() if line.strip()]


def test_the_readme_has_at_most_150_lines() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= 150


def test_the_architecture_page_names_files_that_exist_and_every_package() -> None:
    page, source = (ROOT / "docs" / "architecture.md").read_text(), ROOT / "src" / "fedblocks"
    files = set(re.findall(r"\b[a-z_]+/[a-z_/]+\.(?:py|cu)\b", page))
    assert len(files) > 20
    assert {
        file for file in files if not (source / file).is_file() and not (ROOT / file).is_file()
    } == set()
    packages = {
        path.name for path in source.iterdir() if path.is_dir() and path.name != "__pycache__"
    }
    assert packages == set(re.findall(r"^\| `([a-z]+)` \|", page, re.MULTILINE))


def test_the_walk_through_a_round_has_at_most_20_files() -> None:
    numbers = re.findall(
        r"^\| (\d+) \| [a-z_/]+\.py \|",
        (ROOT / "docs" / "architecture.md").read_text(),
        re.MULTILINE,
    )
    assert [int(number) for number in numbers] == list(range(1, len(numbers) + 1))
    assert 10 <= len(numbers) <= 20


def test_the_method_of_the_guide_passes_its_checks(capsys: pytest.CaptureFixture[str]) -> None:
    whole = "\n".join(blocks("docs/add_a_method.md"))
    exec(compile(whole, "docs/add_a_method.md", "exec", dont_inherit=True), {"__name__": "guide"})
    said = capsys.readouterr().out
    states = re.findall(r"^ *\d+  (holds|fails|not applicable|not checked) ", said, re.MULTILINE)
    assert len(states) == 22 and "fails" not in states and states.count("holds") >= 19
    (shown,) = re.findall(
        r"```output\n(.*?)```", (ROOT / "docs/add_a_method.md").read_text(), re.DOTALL
    )
    assert said.endswith(shown)


def test_every_change_in_the_commands_of_the_readme_changes_something() -> None:
    changes = re.findall(r"fedblocks run (\S+) --set (\S+)", README)
    assert changes
    for preset, change in changes:
        assert read_config(preset, [change]) != read_config(preset), (
            f"{preset} has {change} already"
        )


@pytest.mark.parametrize(
    "section",
    [
        Config,
        DataSection,
        TaskSection,
        CohortSection,
        EvaluationSection,
        CheckpointSection,
        FaultsSection,
    ],
)
def test_every_field_of_a_configuration_is_explained(section: type[BaseModel]) -> None:
    page = (ROOT / "docs" / "configuration.md").read_text()
    explained = {
        name.rpartition(".")[2] for name in re.findall(r"^\| `([\w.]+)` \|", page, re.MULTILINE)
    }
    # sections of their own
    tables = {"data", "net", "method", "task", "cohort", "evaluation", "checkpoint"}
    tables |= {"groups", "faults", "stopping"}
    assert set(section.model_fields) - tables <= explained
