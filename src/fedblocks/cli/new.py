"""`fedblocks new`: a method, a net or a data set of one's own, as a package that works
before anything is changed.
"""

from __future__ import annotations

import keyword
import re
from pathlib import Path
from string import Template
from typing import Annotated

import typer

from fedblocks.cli.help import Command
from fedblocks.cli.names import method_names
from fedblocks.cli.output import AsJson, say, show_json
from fedblocks.core.errors import UserError

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None)

Name = Annotated[
    str, typer.Argument(metavar="NAME", help="Name of small letters, digits and _, e.g. my_idea.")
]
Out = Annotated[
    Path | None, typer.Option("--out", metavar="FOLDER", help="Folder to create; default: NAME.")
]

COMMON = {
    "pyproject.toml": "pyproject.toml",
    "README.md": "README.md",
    "__init__.py": "src/$package/__init__.py",
}
FILES = {  # template -> file of the new package
    "method": {**COMMON, "method.py": "src/$package/method.py", "test.py": "tests/test_$name.py"},
    "net": {
        **COMMON,
        "net.py": "src/$package/net.py",
        "test.py": "tests/test_$name.py",
        "example.toml": "example.toml",
    },
    "dataset": {
        **COMMON,
        "dataset.py": "src/$package/dataset.py",
        "test.py": "tests/test_$name.py",
        "example.toml": "example.toml",
    },
}


@app.command("method", cls=Command)
def method(name: Name, out: Out = None, as_json: AsJson = False) -> None:
    """Create a package with a method and its test.

    Install it to use the method by name.
    """
    if name in method_names():
        fix = "choose another name; `fedblocks methods` lists those taken"
        raise UserError(f'there is a method "{name}" already', fix)
    folder = _make_package("method", name, out)
    _show_files(folder, name, as_json, f"fedblocks compare digits-fedavg --methods {name}")


@app.command("net", cls=Command)
def net(name: Name, out: Out = None, as_json: AsJson = False) -> None:
    """Create a package with a net, its test and an example.

    Install it to use the net by name.
    """
    folder = _make_package("net", name, out)
    _show_files(folder, name, as_json, "fedblocks run example.toml")


@app.command("dataset", cls=Command)
def dataset(name: Name, out: Out = None, as_json: AsJson = False) -> None:
    """Create a package with a data set, its test and an example.

    Install it to use the data set by name.
    """
    folder = _make_package("dataset", name, out)
    _show_files(folder, name, as_json, "fedblocks run example.toml")


def _make_package(what: str, name: str, out: Path | None) -> Path:
    """Write all files of a new package; nothing is ever overwritten."""
    from importlib.resources import files

    if not _is_module_name(name):
        plain = re.sub(r"\W+", "_", name).strip("_").lower()
        fix = f"use small letters, digits and _: {plain if _is_module_name(plain) else 'my_idea'}"
        raise UserError(f'"{name}" cannot be the name of a Python module', fix)
    folder = out if out is not None else Path(name)
    if folder.exists():
        fix = "choose another name, or another folder with --out"
        raise UserError(f"{folder} exists already", fix)
    class_name = "".join(part.capitalize() for part in name.split("_"))
    words = {"name": name, "package": f"fedblocks_{name}", "class_name": class_name}
    templates = files("fedblocks") / "templates" / what
    for template, target in FILES[what].items():
        text = (templates / f"{template}.txt").read_text(encoding="utf-8")
        _write(folder / Template(target).substitute(words), Template(text).substitute(words))
    return folder


def _is_module_name(name: str) -> bool:
    return bool(re.fullmatch(r"[a-z][a-z0-9_]*", name)) and not keyword.iskeyword(name)


def _write(path: Path, text: str) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UserError(
            f"cannot write {path}: {error.strerror or error}", "choose another folder with --out"
        ) from error


def _show_files(folder: Path, name: str, as_json: bool, then: str) -> None:
    files = sorted(str(path) for path in folder.rglob("*") if path.is_file())
    if as_json:
        show_json({"name": name, "folder": str(folder), "files": files})
        return
    for path in files:
        say(path)
    say(f"Next: cd {folder}; pip install -e . --no-build-isolation --no-deps; pytest; {then}")
