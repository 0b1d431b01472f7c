"""The names of the package: one list, each of them there, explained and typed."""

import ast
import inspect
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import fedblocks

SOURCE = Path(fedblocks.__file__)
VALUES = {
    "DATASETS",
    "METHODS",
    "NETS",
    "PRESETS",
    "CHECKS",
    "IGNORE",
}  # no docstrings: what they are stands beside them
ALIASES = {"Block", "Blocks", "Params"}


@pytest.mark.parametrize("name", fedblocks.__all__)
def test_a_name_is_there_and_explained(name: str) -> None:
    actual = getattr(fedblocks, name)
    assert name in VALUES | ALIASES or (inspect.getdoc(actual) or "").strip()


@pytest.mark.parametrize(
    "name", [n for n in fedblocks.__all__ if inspect.isfunction(getattr(fedblocks, n))]
)
def test_a_function_has_types(name: str) -> None:
    signature = inspect.signature(getattr(fedblocks, name))
    assert signature.return_annotation is not inspect.Signature.empty
    assert all(p.annotation is not inspect.Parameter.empty for p in signature.parameters.values())


def test_type_checkers_see_the_same_list_and_that_there_are_types() -> None:
    (block,) = (node for node in ast.parse(SOURCE.read_text()).body if isinstance(node, ast.If))
    seen = {
        name
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
        for name in (
            import_module(str(node.module)).__all__
            if alias.name == "*"
            else [alias.asname or alias.name]
        )
    }
    assert {name for name in seen if not name.startswith("_")} | {"DataPool"} == set(
        fedblocks.__all__
    )
    assert (SOURCE.parent / "py.typed").is_file()


def test_every_method_can_be_taken_by_the_name_of_its_class() -> None:
    assert {kind.__name__ for kind in fedblocks.METHODS.values()} <= set(fedblocks.__all__)
    assert fedblocks.FedPer is fedblocks.METHODS["fedper"]


def test_an_unknown_name_is_an_attribute_error_and_nothing_is_imported_before_it_is_asked_for() -> (
    None
):
    with pytest.raises(AttributeError, match="fedblocks has no name 'FedAvgg'"):
        _ = fedblocks.FedAvgg
    code = (
        "import sys, fedblocks; dir(fedblocks); fedblocks.__all__; sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
