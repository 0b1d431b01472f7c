"""Commands read what people named by `read_small`, which neither waits nor reads without an end."""

from __future__ import annotations

import ast
from pathlib import Path

import fedblocks

HOME = Path(fedblocks.__file__).parent
READERS = ("read_text", "read_bytes", "open")
# files of the package, of /proc, and those that this library alone writes
OTHERS = {
    "cli/health.py: read_text",
    "cli/names.py: read_text",
    "cli/new.py: read_text",
    "cli/packages.py: read_text",
    "cli/app.py: os.open",
    "flower/gateway/owners.py: read_text",
    "flower/hosts/process_group.py: open",
    "flower/hosts/process_group.py: read_bytes",
    "flower/hosts/process_group.py: read_text",
    "flower/keys/private_files.py: os.open",
    "flower/keys/private_files.py: open",
}


def _readings(path: Path) -> set[str]:
    names = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call):
            match node.func:
                case ast.Name(id="open"):
                    names.add("open")
                case ast.Attribute(value=ast.Name(id="os"), attr="open"):
                    names.add("os.open")
                case ast.Attribute(attr=name, value=owner) if name in READERS:
                    if not (isinstance(owner, ast.Name) and owner.id[0].isupper()):
                        names.add(name)  # of a path, not of a class such as RunFolder
    return {f"{path.relative_to(HOME)}: {name}" for name in names}


def test_commands_read_what_people_named_in_one_way() -> None:
    files = [file for name in ("cli", "config", "flower") for file in (HOME / name).rglob("*.py")]
    assert len(files) > 100
    assert set().union(*map(_readings, files)) - {"cli/watch.py: open"} == OTHERS
