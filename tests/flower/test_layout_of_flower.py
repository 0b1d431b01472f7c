"""The order of imports inside fedblocks.flower, who imports Flower, and what a client's
host loads.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from importlib.util import resolve_name
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src" / "fedblocks" / "flower"
FILES = [str(file.relative_to(SOURCE)) for file in sorted(SOURCE.rglob("*.py"))]
# configuration files of machines
FOLDERS = {"hosts.folders", "client.policy", "gateway.limits", "keys.private_files", "keys.trust"}
PROCESSES = {"hosts.launch", "hosts.process_group"}
PACKAGES = {"wire", "server", "client", "hosts", "keys", "gateway"}
MAY_IMPORT = {
    "wire": {"wire"},
    "server": {"wire", "server", "keys", *FOLDERS},
    "client": {"wire", "client", "keys", *FOLDERS, *PROCESSES},
    "keys": {"keys", *FOLDERS},
    "gateway": {"gateway", "keys", *FOLDERS},
    "hosts": PACKAGES,
    "": {*PACKAGES, "local", "simulation"},  # the files beside the packages
}
# they need none of what stands on them
GROUND = {name: {*FOLDERS, *PROCESSES} for name in (*FOLDERS, *PROCESSES)}
USES_FLOWER = {
    "wire/records.py",
    "server/app.py",
    "server/pulling.py",
    "client/app.py",
    "client/fleet.py",
    "client/node.py",
    "ray_app.py",
    "deploy.py",
}


def imports(tree: ast.AST, package: str) -> set[str]:
    """The modules, or names in modules, that a piece of code imports."""
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            module = resolve_name("." * node.level + (node.module or ""), package)
            names |= {f"{module}.{alias.name}" for alias in node.names}
    return names


def order_broken(source: str, file: str) -> set[str]:
    """The modules of fedblocks.flower that a file imports and may not."""
    own = file.removesuffix(".py").replace("/", ".")
    package = own.rpartition(".")[0]
    names = imports(ast.parse(source), f"fedblocks.flower.{package}".rstrip("."))
    ours = {
        name.removeprefix("fedblocks.flower.")
        for name in names
        if name.startswith("fedblocks.flower.")
    }
    allowed = GROUND.get(own, MAY_IMPORT[package])
    return {
        name for name in ours if not any(f"{name}.".startswith(f"{known}.") for known in allowed)
    }


def imports_flower(source: str) -> bool:
    """Whether a file imports Flower when it is loaded: not for types alone, and not
    inside a function.
    """
    inside = (ast.FunctionDef, ast.AsyncFunctionDef)
    body = [node for node in ast.parse(source).body if not isinstance(node, inside)]
    loaded = [
        node
        for node in body
        if not (isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING")
    ]
    return any(
        name.split(".")[0] in ("flwr", "ray")
        for name in imports(ast.Module(loaded, []), "fedblocks.flower")
    )


@pytest.mark.parametrize("file", FILES)
def test_a_file_of_flower_imports_only_what_stands_before_it(file: str) -> None:
    assert order_broken((SOURCE / file).read_text(), file) == set()


def test_flower_is_imported_where_messages_are_packed_sent_or_answered_and_nowhere_else() -> None:
    assert {file for file in FILES if imports_flower((SOURCE / file).read_text())} == USES_FLOWER


@pytest.mark.parametrize(
    ("file", "source", "wrong"),
    [
        (
            "wire/a.py",
            "from fedblocks.flower.client.side import ClientSide",
            "client.side.ClientSide",
        ),
        ("wire/a.py", "from ..hosts import folders", "hosts.folders"),
        ("server/a.py", "from fedblocks.flower.client import app", "client.app"),
        (
            "client/a.py",
            "from fedblocks.flower.server.registry import Registry",
            "server.registry.Registry",
        ),
        ("client/a.py", "def f():\n    from fedblocks.flower.hosts import setup", "hosts.setup"),
        ("server/a.py", "import fedblocks.flower.hosts.running", "hosts.running"),
        ("gateway/a.py", "from fedblocks.flower.hosts import launch", "hosts.launch"),
        ("keys/a.py", "from fedblocks.flower.wire.messages import Wire", "wire.messages.Wire"),
        ("hosts/folders.py", "from fedblocks.flower.server.jobs import Job", "server.jobs.Job"),
        ("hosts/a.py", "from fedblocks.flower.local import exchange", "local.exchange"),
    ],
)
def test_an_import_against_the_order_of_flower_is_seen(file: str, source: str, wrong: str) -> None:
    assert order_broken(source, file) == {wrong}


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("from flwr.app import Message", True),
        ("import flwr.proto.node_pb2", True),
        ("try:\n    import ray\nexcept ImportError:\n    pass", True),
        ("class A:\n    from flwr.app import Message", True),
        ("if TYPE_CHECKING:\n    from flwr.app import Message", False),
        ("def f():\n    from flwr.app import Message", False),
    ],
)
def test_an_import_of_flower_counts_if_loading_the_file_runs_it(
    source: str, expected: bool
) -> None:
    assert imports_flower(source) is expected


def test_the_host_of_a_clients_process_loads_neither_torch_nor_flower() -> None:
    process = "import sys, fedblocks.cli.app, fedblocks.flower.client.host"
    code = f"{process}; print(*{{name.split('.')[0] for name in sys.modules}})"
    loaded = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.split()
    assert "fedblocks" in loaded
    assert not {"torch", "numpy", "flwr", "ray"} & {*loaded}


@pytest.mark.parametrize("package", sorted(PACKAGES))
def test_a_package_says_what_it_imports_and_where_to_start(package: str) -> None:
    text = ast.get_docstring(ast.parse((SOURCE / package / "__init__.py").read_text())) or ""
    first = text.partition("Start with `")[2].partition("`")[0]
    assert (SOURCE / package / f"{first}.py").is_file()
    assert "It imports " in text
