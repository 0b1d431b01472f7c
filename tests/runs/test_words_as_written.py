"""Words and numbers as people write them: blanks and quotes around them do not matter, limits are
where the message says, and what git and Linux write is read.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from fedblocks.cli.packages import fits
from fedblocks.cli.reproduce import seconds_of
from fedblocks.config.sources import Source, parse_change
from fedblocks.core.errors import UserError
from fedblocks.recipes.running.provenance import COMMIT, commit
from fedblocks.runs.digits import method_on_digits
from fedblocks.runs.extension import _total
from fedblocks.runs.grids.space import OneOf, Range, parse_space
from fedblocks.runs.storage import environment
from fedblocks.runs.storage.checkout import commit_around, commit_at

SHA = "0123456789abcdef0123456789abcdef01234567"


def test_blanks_in_a_change_do_not_matter() -> None:
    assert parse_change(" method . lr = 0.5 ") == (("method", "lr"), 0.5)
    assert parse_change("method.name =  fedavg ") == (("method", "name"), "fedavg")
    for nothing in ("=4", "a..b=4", "a. =4", "a"):
        with pytest.raises(UserError, match="not NAME=VALUE"):
            parse_change(nothing)


def test_a_quoted_key_is_found_on_its_line() -> None:
    text = '[method]\nname = "fedavg"\n["groups" . \'a\']\nshare = 1\n'
    source = Source("c.toml", text)
    assert source.place(("method", "name")) == "c.toml:2"
    assert source.place(("groups", "a", "share")) == "c.toml:4"
    assert source.place(("groups", "a", "other")) == "c.toml:3"
    assert source.place(("nowhere",)) == "c.toml"
    changed = Source("c.toml", text, frozenset({("method", "lr")}))
    assert changed.place(("method", "lr", "rounds")) == "--set method.lr"


def test_blanks_in_what_is_searched_do_not_matter() -> None:
    words = [" method.lr = 0.01..1:log ", " net.hidden = [32] | [64] ", "a = 2..8", "rounds=3"]
    space, fixed = parse_space(words)
    assert space == {
        "method.lr": Range(0.01, 1, log=True),
        "net.hidden": OneOf(("[32]", "[64]")),
        "a": Range(2, 8, log=False),
    }
    assert fixed == ["rounds=3"] and isinstance(space["a"].low, int)
    assert space["method.lr"].examples == ["0.01", "1"] and space["net.hidden"].examples == [
        "[32]",
        "[64]",
    ]


@pytest.mark.parametrize("text", ["a=1..1", "a=2..1", "a=0..1:log", "a=-1..1:log"])
def test_an_empty_range_is_refused(text: str) -> None:
    with pytest.raises(UserError, match="nothing between"):
        parse_space([text])


def test_a_range_needs_two_numbers_and_a_search_needs_a_range() -> None:
    with pytest.raises(UserError, match="two numbers"):
        parse_space(["a=low..high"])
    with pytest.raises(UserError, match="nothing to search for"):
        parse_space(["a=1"])


def test_a_time_has_a_unit_or_is_in_seconds() -> None:
    times = (" 9m ", "540s", "540", "1.5h")
    assert [seconds_of(text) for text in times] == [540.0, 540.0, 540.0, 5400.0]
    for wrong in ("9 m", "-9m", "9d", ""):
        with pytest.raises(UserError, match="is not a time"):
            seconds_of(wrong)


@pytest.mark.parametrize(
    ("rounds", "total"), [(" +20 ", 30), ("+1", 11), (11, 11), ("999999999", 999999999)]
)
def test_rounds_are_more_or_in_all(rounds: int | str, total: int) -> None:
    assert _total(rounds, 10) == total


@pytest.mark.parametrize("rounds", [10, "10", "+0", True, "-1", "1000000000", "²", "", "+", "2.5"])
def test_rounds_that_are_not_more_are_refused(rounds: int | str) -> None:
    with pytest.raises(UserError, match="rounds = "):
        _total(rounds, 10)


def test_an_option_on_the_digits_may_have_blanks_around_its_name() -> None:
    assert method_on_digits("fedavg", [" lr = 0.25"]).lr == 0.25
    assert not method_on_digits("fedbn", []).degenerate()  # it gets a net with norms
    with pytest.raises(UserError, match="no normalisation layer"):
        method_on_digits("fedbn", [" net.name=mlp"])


@pytest.mark.parametrize("name", [SHA, SHA + SHA[:24]])
def test_a_commit_is_read_with_the_line_ends_that_git_writes(tmp_path: Path, name: str) -> None:
    git = tmp_path / ".git"
    (git / "refs/heads").mkdir(parents=True)
    (git / "HEAD").write_text(f"{name}\n")
    assert commit_at(tmp_path) == name
    (git / "HEAD").write_text("ref: refs/heads/main\n")
    (git / "refs/heads/main").write_text(f"{name}\n")
    assert commit_at(tmp_path) == name
    (git / "refs/heads/main").unlink()
    (git / "packed-refs").write_text(f"# pack\n{'f' * 40} refs/heads/old\n{name} refs/heads/main\n")
    assert commit_at(tmp_path) == name
    (tmp_path / "a/b").mkdir(parents=True)
    assert commit_around(tmp_path / "a/b") == name


def test_a_further_work_tree_has_the_commit_of_its_own_branch(tmp_path: Path) -> None:
    home = tmp_path / "main/.git"
    own = home / "worktrees/side"
    (home / "refs/heads").mkdir(parents=True)
    own.mkdir(parents=True)
    (home / "HEAD").write_text(f"{'f' * 40}\n")
    (home / "refs/heads/side").write_text(f"{SHA}\n")
    (own / "HEAD").write_text("ref: refs/heads/side\n")
    (own / "commondir").write_text("../..\n")
    tree = tmp_path / "side"
    tree.mkdir()
    (tree / ".git").write_text(f"gitdir: {own}\n")
    assert commit_at(tree) == SHA


@pytest.mark.parametrize("head", ["ref: refs/../../secret", "ref: elsewhere", "0123", ""])
def test_a_head_that_git_does_not_write_names_no_commit(tmp_path: Path, head: str) -> None:
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git/HEAD").write_text(head)
    (tmp_path / "secret").write_text(SHA)
    (tmp_path / ".git/elsewhere").write_text(SHA)
    assert commit_at(tmp_path) is None
    assert commit_at(tmp_path / "nowhere") is None


def test_the_environment_may_name_the_commit_of_a_copy(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(COMMIT, f" {SHA.upper()}\n")
    assert commit(tmp_path) == SHA
    monkeypatch.setenv(COMMIT, "012345")
    assert commit(tmp_path) is None


def test_a_processor_is_named_without_what_surrounds_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    text = "processor\t: 0\nmodel name\t: Some CPU 3000 \nmodel name\t: Other\n"
    monkeypatch.setattr(environment.Path, "read_text", lambda _: text)
    assert environment._cpu_name() == "Some CPU 3000"


def test_a_home_folder_is_not_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/ann/")
    assert environment.without_home("/home/ann/run") == "~/run"
    monkeypatch.setenv("HOME", "/")
    assert environment.without_home("/run") == "/run"


@pytest.mark.parametrize(
    ("version", "wanted", "is_one"),
    [
        ("1.2", ">=1.2", True), ("1.2", ">1.2", False), ("1.2", "<=1.2.0", True),
        ("1.2", "<1.2", False), ("1.10", ">1.9", True), ("1.2", "==1.2.0", True),
        ("1.2", "!=1.2", False), ("2.13.0+cpu", ">=2.4,<3", True), ("3.0", ">=2.4,<3", False),
        ("1.2", "~=1.1", True), ("1.2", "==2.*", True), ("1.2", "", True),
    ],
)  # fmt: skip
def test_a_version_fits_what_is_wanted(version: str, wanted: str, is_one: bool) -> None:
    assert fits(version, wanted) is is_one
