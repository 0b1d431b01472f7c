"""Which tests are asked, and in which order."""

from __future__ import annotations

import json
from pathlib import Path

from mutants.near import (
    IMPORTS,
    MENTIONS,
    NAMED,
    NEIGHBOUR,
    STRANGER,
    Nearness,
    bears_name,
    names_of,
)
from mutants.order import affordable, spread, within_budget
from mutants.project import Project
from mutants.reach import Reach
from mutants.sites import sites

SECONDS = {"a::x": 0.1, "b::y": 0.2, "a::z": 0.3, "c::slow": 5.0, "b::w": 0.4}


def test_one_case_of_each_test_comes_before_the_second_of_any() -> None:
    assert spread(["a::f[1]", "a::f[2]", "a::g", "a::f[3]"]) == [
        "a::f[1]",
        "a::g",
        "a::f[2]",
        "a::f[3]",
    ]


def test_all_cases_of_some_tests_can_come_first_as_far_as_time_suffices() -> None:
    tests = ["a::f[1]", "b::g[1]", "b::g[2]", "a::f[2]", "b::g[3]"]
    near = affordable(["b::g[1]", "b::g[2]", "b::g[3]"], lambda test: 0.5, 1.0)
    assert near == ["b::g[1]", "b::g[2]"]
    assert spread(tests, first=near) == ["b::g[1]", "b::g[2]", "a::f[1]", "b::g[3]", "a::f[2]"]


def test_tests_of_all_files_can_have_a_turn() -> None:
    assert spread(["a::f", "a::g", "b::f", "a::h", "b::g"], "::") == [
        "a::f",
        "b::f",
        "a::g",
        "b::g",
        "a::h",
    ]


def test_tests_are_asked_until_their_time_is_spent() -> None:
    assert within_budget(list(SECONDS), SECONDS, {}, 1.0) == ["a::x", "a::z", "b::y", "b::w"]
    assert within_budget(list(SECONDS), SECONDS, {}, 0.35) == ["a::x", "b::y"]


def test_a_test_that_takes_longer_than_the_budget_is_asked_if_it_is_the_first() -> None:
    assert within_budget(["c::slow", "a::x"], SECONDS, {}, 1.0) == ["c::slow"]


def test_a_fixture_is_paid_for_once_in_a_file() -> None:
    shared = {
        "a::x": 0.5,
        "a::z": 0.5,
        "b::y": 0.5,
    }  # with them: 0.6, then 0.3; b::y would need 0.7
    assert within_budget(["a::x", "a::z", "b::y"], SECONDS, shared, 1.0) == ["a::x", "a::z"]


def test_tests_that_import_a_file_are_nearer_than_those_of_its_folder(tmp_path: Path) -> None:
    texts = {
        "tests/core/test_a.py": "from fedblocks.core.trees import f",
        "tests/core/test_b.py": "from fedblocks.core.trees_and_more import g",
        "tests/data/test_c.py": "from fedblocks.core.other import h",
        "tests/data/test_d.py": "from fedblocks.core import (\n    other,\n    trees,\n)",
        "tests/data/test_e.py": "from fedblocks.core import other\nimport trees",
    }
    for name, text in texts.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    nearness = Nearness(Project(tmp_path))
    actual = [nearness.of(f"{name}::test_it", "core/trees.py") for name in texts]
    assert actual == [IMPORTS, NEIGHBOUR, STRANGER, IMPORTS, STRANGER]


def test_a_test_is_near_what_its_file_or_its_case_is_called_after(tmp_path: Path) -> None:
    file = tmp_path / "tests" / "oracles" / "test_fedamp.py"
    file.parent.mkdir(parents=True)
    file.write_text("import torch\n")
    near = Nearness(Project(tmp_path))
    assert near.of("tests/oracles/test_fedamp.py::test_x", "methods/fedamp.py") == NAMED
    assert near.of("tests/oracles/test_fedamp.py::test_x", "methods/ditto.py") == STRANGER
    assert bears_name("tests/a/test_as_ever.py::test_two_rounds[fedamp]", "methods/fedamp.py")
    assert bears_name("tests/a/test_fedmn_start.py::test_it", "methods/fedmn/router.py")
    assert bears_name("tests/a/test_per_fedavg.py::test_it", "methods/per_fedavg.py")
    assert not bears_name("tests/a/test_x.py::test_fedamp_is_fine", "methods/fedamp.py")
    assert not bears_name("tests/a/test_nets.py::test_it", "core/net.py")
    assert not bears_name("tests/a/test_x.py::test_it[heur_fedamps]", "methods/fedamp.py")


def test_a_test_is_nearest_to_what_it_mentions(tmp_path: Path) -> None:
    file = tmp_path / "tests" / "core" / "test_a.py"
    file.parent.mkdir(parents=True)
    file.write_text(
        "from toy.core.sums import half, LIMIT\n"
        "def test_it(): assert half(2) == 1\n"
        "@mark(LIMIT)\n"
        "def test_other(): halfway()\n"
    )
    near = Nearness(Project(tmp_path, "toy"))
    text = (
        b"LIMIT: int = 3\nclass A:\n    def half(self): return 1\n    def __len__(self): return 2\n"
    )
    limit, half, length = (names_of(site) for site in sites("core/sums.py", text))
    assert (limit, half, length) == ({"LIMIT"}, {"half"}, set())  # "A" is too short
    asked = [
        near.of(f"tests/core/test_a.py::{test}", "core/sums.py", names)
        for names in (limit, half, length)
        for test in ("test_it[case]", "test_other")
    ]
    assert asked == [IMPORTS, MENTIONS, MENTIONS, IMPORTS, IMPORTS, IMPORTS]


def test_what_runs_when_tests_are_collected_is_told_by_those_that_reach_it_first(
    tmp_path: Path,
) -> None:
    project = Project(tmp_path, "toy", {"core": ("core",)}, (), ())
    text = b"LIMIT = 3\ndef half(x):\n    return x / 2\ndef other(x):\n    return x + 1\n"
    (project.source / "core").mkdir(parents=True)
    (project.source / "core" / "sums.py").write_bytes(text)
    tests = {"tests/test_a.py": ["test_far"], "tests/test_b.py": ["test_half", "test_more"]}
    reach = Reach(project)
    for file, names in tests.items():
        (tmp_path / file).parent.mkdir(exist_ok=True)
        (tmp_path / file).write_text("".join(f"def {name}(): ...\n" for name in names))
        ids = [f"{file}::{name}" for name in names]
        lines = {name: f"{1 << (3 if 'half' in name else 5):x}" for name in ids}
        noted = {"seconds": dict.fromkeys(ids, 0.1), "shared": {}, "failed": []}
        noted |= {"reached": {"core/sums.py": lines}, "key": ""}
        reach._path(file).write_text(json.dumps(noted))
    far, half, more = (f"{file}::{name}" for file, names in tests.items() for name in names)
    limit, halved = sites("core/sums.py", text)[:2]
    for collected, of_limit, of_half in [
        ("0", {far, half, more}, [half]),
        (f"{1 << 3:x}", {far, half, more}, [half, far, more]),
    ]:
        (reach.folder / "imports.json").write_text(json.dumps({"core/sums.py": collected}))
        fresh = Reach(project)
        assert {*fresh.tests(limit)} == of_limit and fresh.tests(halved) == of_half
