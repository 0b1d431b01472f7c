"""Another version of a method is one of which any file that it imports is another."""

import sys
from importlib import import_module
from pathlib import Path

import pytest

from fedblocks.recipes.suite.own_code import own_files

FILES = {
    "mine.py": "import helper, numpy.random, json\nfrom tools import angles\nimport gone, broken\n",
    "helper.py": "from fedblocks import Method\nfrom deep.below import FACTOR\nimport mine\n",
    "tools/angles.py": "def late():\n    from .units import DEGREE\n",  # no __init__.py
    "tools/units.py": "DEGREE = 1\n",
    "tools/unused.py": "",
    "deep/__init__.py": "",
    "deep/below.py": "from . import beside\nFACTOR = 1\ndef late():\n    from ... import far\n",
    "deep/beside.py": "",
    "broken.py": "this is no Python",
    "site-packages/theirs/__init__.py": "from . import inner\n",
    "site-packages/theirs/inner.py": "",
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A method with helpers around it, and a package that was installed."""
    for name, text in FILES.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    monkeypatch.setattr(sys, "modules", dict(sys.modules))  # what is looked into is imported
    for place in (tmp_path / "site-packages", tmp_path):
        monkeypatch.syspath_prepend(str(place))
    return tmp_path


def found(folder: Path, name: str) -> set[str]:
    return {str(path.relative_to(folder)) for path in own_files([folder / name])}


def test_helpers_belong_to_a_file_and_helpers_of_helpers_but_no_installed_packages(
    folder: Path,
) -> None:
    (folder / "mine.py").write_text(FILES["mine.py"] + "import theirs.inner\n")
    import_module("tools.angles"), import_module("deep.below")
    packages = {f"deep/{name}.py" for name in ("__init__", "below", "beside")}
    packages |= {"tools/angles.py", "tools/units.py"}
    assert found(folder, "mine.py") == {"mine.py", "helper.py", "broken.py", *packages}


def test_modules_of_a_files_own_package_belong_to_it(folder: Path) -> None:
    import_module("theirs")
    assert found(folder, "deep/beside.py") == {"deep/beside.py"}
    theirs = {f"site-packages/theirs/{name}.py" for name in ("__init__", "inner")}
    assert found(folder, "site-packages/theirs/__init__.py") == theirs
    assert found(folder, "nowhere.py") == {"nowhere.py"}
