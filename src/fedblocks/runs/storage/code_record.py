"""Which code of the user's a run needs: written to its folder, and asked for by name
where it is missing.
"""

from __future__ import annotations

import inspect
import json
import os
import sys
import sysconfig
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TypeGuard

import fedblocks.core
from fedblocks.config.code.loading import Code, file_hash
from fedblocks.config.model import Config
from fedblocks.config.registry import PYTHON, Named, kinds
from fedblocks.config.texts import read_text
from fedblocks.core.augmentations import AUGMENTATIONS
from fedblocks.core.errors import UserError
from fedblocks.core.losses import LOSSES
from fedblocks.core.metrics import METRICS, CountMetric, Metric
from fedblocks.runs.storage.environment import without_home

FILE = "code.json"
PROGRAM = "the program that started the run"
Entry = dict[str, str]  # defines, and a package, or a file and its sha256

_OURS = Path(fedblocks.core.__file__ or "").parents[1]
_INSTALLED = [Path(sysconfig.get_paths()[key]) for key in ("stdlib", "purelib", "platlib")]


def entries_of(table: Mapping[str, Any]) -> list[Entry]:
    """What a configuration needs that is not ours: its program, or files and packages
    that define what it names.
    """
    if table.get("data", {}).get("name") == PYTHON:
        return [_program()]
    entries = [_entry(kind, name) for kind, name in names_in(table) if name in _known(kind)]
    return [entry for entry in entries if entry is not None]


def text_of(table: Mapping[str, Any]) -> str | None:
    """The entries as JSON; None: everything that the configuration names is ours."""
    entries = entries_of(table)
    return json.dumps(entries, indent=2) + "\n" if entries else None


def read_entries(folder: Path) -> list[Entry]:
    """What a run folder says of the code that it needs."""
    try:
        entries = json.loads(read_text(folder / FILE))
    except (OSError, ValueError, RecursionError):
        return []
    return entries if _are_entries(entries) else []


def code_options(entries: list[Entry]) -> list[str]:
    """The options of a command that name the files in which the code stands, each once."""
    files = dict.fromkeys(entry["file"] for entry in entries if "file" in entry)
    return [word for file in files for word in ("--code", file)]


def _are_entries(value: Any) -> TypeGuard[list[Entry]]:
    return isinstance(value, list) and all(
        isinstance(entry, dict)
        and isinstance(entry.get("defines"), str)
        and all(isinstance(text, str) for text in entry.values())
        for entry in value
    )


def names_in(table: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Kind and name of what a configuration names, each once."""
    tables = [table, *table.get("groups", {}).values()]
    named = [
        (kind, one.get(kind, {}).get("name"))
        for one in tables
        for kind in ("data", "net", "method")
    ]
    task = table.get("task", {})
    named.append(("sampler", table.get("cohort", {}).get("sampler", {}).get("name")))
    named.append(("loss", task.get("loss")))
    named += [("metric", name) for name in task.get("metrics", ())]
    changes = [change for one in tables for change in one.get("method", {}).get("augment", ())]
    named += [("augmentation", change.get("name")) for change in changes]
    yield from dict.fromkeys((kind, name) for kind, name in named if name is not None)


def _known(kind: str) -> Mapping[str, Any]:
    """All that something of a kind may be called."""
    others: dict[str, Mapping[str, Any]] = {
        "loss": LOSSES,
        "metric": METRICS,
        "augmentation": AUGMENTATIONS,
    }
    return others[kind] if kind in others else kinds()[kind]


def require_names(config: Config, folder: Path) -> None:
    """Refuse a run that names something unknown here, and say which code defines it."""
    for kind, name in names_in(config.resolved()):
        known = _known(kind)
        if name not in known:
            what = f'{known.what if isinstance(known, Named) else kind} "{name}"'
            fix = what_to_add(read_entries(folder), what)
            raise UserError(f"{folder} needs the {what}, which is not known here", fix)


def require_objects(folder: Path) -> UserError:
    """The error for a run of objects that nobody has handed over."""
    fix = (
        "in Python, give the method and the data again (the arguments `method` and `data`); on the "
        f"command line, {what_to_add(read_entries(folder), PROGRAM)}"
    )
    return UserError(
        f"{folder} was started by a Python program, which made its net and its data", fix
    )


def warnings(folder: Path, code: Code) -> list[str]:
    """What differs between the code that was read and that which a run was started with."""
    before = {
        Path(entry["file"]).name: entry for entry in read_entries(folder) if "sha256" in entry
    }
    changed = [
        name for name, digest in code.hashes if name in before and before[name]["sha256"] != digest
    ]
    return [
        f"{name} has changed since the run was started (its SHA-256 differs)" for name in changed
    ]


def what_to_add(entries: list[Entry], what: str) -> str:
    """What makes something known that a run needs."""
    first = next(iter(entries), None)
    entry = next((one for one in entries if one["defines"] == what), first)
    if entry is None:
        return f"add --code FILE (the Python file that defines {what}; the run does not say which)"
    if "package" in entry:
        return f"install {entry['package']} (the package that defines {what})"
    if "file" not in entry:
        return "it was started in a notebook or a session without a file: go on there"
    defined = entry["defines"]
    role = defined if defined == PROGRAM else f"the file that defines {defined}"
    return f"add --code {entry['file']} ({role}, recorded with SHA-256 {entry['sha256'][:12]}...)"


def _entry(kind: str, name: str) -> Entry | None:
    known = _known(kind)
    what = f'{known.what if isinstance(known, Named) else kind} "{name}"'
    if isinstance(known, Named) and (package := known.package_of(name)) is not None:
        return {"defines": what, "package": package}
    target = known[name]
    file = _file_of(target.of if isinstance(target, Metric | CountMetric) else target)
    return (
        None
        if file is None or file.is_relative_to(_OURS)
        else {"defines": what, **_describe_file(file)}
    )


def _program() -> Entry:
    """The program that is running; in a notebook there is no file."""
    file = getattr(sys.modules.get("__main__"), "__file__", None)
    path = Path(file).resolve() if file else None
    is_program = (
        path is not None
        and path.is_file()
        and not any(path.is_relative_to(one) for one in _INSTALLED)
    )
    return {"defines": PROGRAM, **(_describe_file(path) if path is not None and is_program else {})}


def _file_of(target: Any) -> Path | None:
    try:
        file = inspect.getsourcefile(inspect.unwrap(target))
    except TypeError:
        return None
    path = Path(file).resolve() if file else None
    return path if path is not None and path.is_file() else None


def _describe_file(file: Path) -> Entry:
    """A file as others may see it, relative to where the command was called."""
    near = file.is_relative_to(Path.cwd())
    shown = os.path.relpath(file) if near else without_home(str(file))
    return {"file": shown, "sha256": file_hash(file)}
