"""The shape of the source: import order, what is never called, and how long things may be."""

import ast
import re
from collections.abc import Callable
from functools import lru_cache
from importlib.util import resolve_name
from pathlib import Path
from typing import Any

import pytest

SOURCE = Path(__file__).parents[2] / "src" / "fedblocks"
FILES = sorted(SOURCE.rglob("*.py"))
NAMES = [str(f.relative_to(SOURCE)) for f in FILES]

# kernels <- layers <-> core <- methods, nets, data <- engines <- config <- runs <- reports, bench
# <- recipes <- cli
MODELS = {"core", "layers", "kernels", "methods", "nets", "data"}
RUNS = MODELS | {"engines", "config", "runs"}
MAY_IMPORT = {
    "kernels": {"kernels"},
    "layers": {"kernels", "layers", "core"},
    "core": {"core", "layers", "kernels"},
    "methods": {"core", "methods"},
    "nets": {"core", "nets"},
    "data": {"core", "data"},
    "engines": MODELS | {"engines"},
    "testing": MODELS | {"engines", "testing"},
    "config": MODELS | {"config"},
    "runs": RUNS,
    "reports": RUNS | {"reports"},
    "bench": RUNS | {"bench"},
    "flower": RUNS | {"flower"},
    "recipes": RUNS | {"reports", "recipes"},
    "export": RUNS | {"export"},
    "watch": RUNS | {"reports", "watch"},
    "cli": RUNS | {"reports", "bench", "flower", "recipes", "export", "watch", "cli"},
    "__main__": {"cli"},
    "__init__": RUNS | {"reports", "export", "testing"},
}
# of the core, for layers
BELOW_LAYERS = {
    "fedblocks.core.errors",
    "fedblocks.core.mode",
    "fedblocks.core.random",
    "fedblocks.core.precision",
}
# the files of the core that use layers or kernels
ABOVE_LAYERS = {
    "core/lora.py",
    "core/lora_targets.py",
    "core/net.py",
    "core/random.py",
    "core/outside_modules.py",
}
PICKLES = {
    "pickle",
    "_pickle",
    "cPickle",
    "dill",
    "cloudpickle",
    "joblib",
    "shelve",
    "marshal",
    "yaml",
}
UNSAFE_CALLS = {
    "eval",
    "exec",
    "torch.load",
    "torch.save",
    "torch.hub.load",
    "torch.jit.load",
    "pandas.read_pickle",
}


@lru_cache(maxsize=1)  # all rules look at one file after the other
def tree_of(source: str) -> ast.Module:
    return ast.parse(source)


def imported(tree: ast.AST, package: str) -> list[str]:
    """Full names of the modules, or names in modules, that a piece of code imports."""
    names = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            module = resolve_name("." * node.level + (node.module or ""), package)
            names += [f"{module}.{alias.name}" for alias in node.names]
    return names


def layers(names: list[str]) -> set[str]:
    """The parts of fedblocks among imported names; a name of the root package, but for
    its version, is `fedblocks`.
    """
    ours = [
        name.split(".")
        for name in names
        if name.split(".")[0] == "fedblocks" and name != "fedblocks.__version__"
    ]
    return {path[1] if len(path) > 1 and path[1] in MAY_IMPORT else "fedblocks" for path in ours}


def order_broken(source: str, file: str) -> set[str]:
    """The parts of fedblocks that a file imports and may not; `cli` may take `testing`
    inside a function.
    """
    path = Path(file)
    package = ".".join(("fedblocks", *path.parts[:-1]))
    layer = path.parts[0].removesuffix(".py")
    tree = tree_of(source)
    wrong = layers(imported(tree, package)) - MAY_IMPORT[layer]
    at_start = ast.Module([node for node in tree.body if not isinstance(node, ast.FunctionDef)], [])
    if layer == "cli" and "testing" not in layers(imported(at_start, package)):
        wrong -= {"testing"}
    return wrong


def unsafe(source: str) -> set[str]:
    """Ways to run code that came as data: pickles in any coat, eval, exec."""
    tree = tree_of(source)
    actual = {
        name
        for name in imported(tree, "fedblocks")
        if name.split(".")[0] in PICKLES or name in UNSAFE_CALLS
    }
    aliases = {
        a.asname: a.name
        for n in ast.walk(tree)
        if isinstance(n, ast.Import)
        for a in n.names
        if a.asname
    }
    for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
        first, _, rest = ast.unparse(call.func).partition(".")
        name = ".".join(filter(None, (aliases.get(first, first), rest)))
        actual |= {name} & UNSAFE_CALLS
        actual |= {
            "allow_pickle"
            for k in call.keywords
            if k.arg == "allow_pickle" and ast.unparse(k.value) != "False"
        }
    return actual


def crowded_functions(source: str) -> list[str]:
    """Functions with more than six arguments that may come without a name. Not counted: kernels,
    layers and autograd's functions, whose signatures others decide.
    """
    functions = [
        node
        for node in ast.walk(tree_of(source))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    outside = re.compile(r"jit|staticmethod")
    own = [f for f in functions if f.name != "forward"]
    free = [f for f in own if not any(outside.search(ast.unparse(d)) for d in f.decorator_list)]
    most = lambda f: 6 + (f.args.args[:1] != [] and f.args.args[0].arg in ("self", "cls"))
    return [f.name for f in free if len(f.args.posonlyargs + f.args.args) > most(f)]


def long_functions(source: str) -> list[str]:
    """Functions whose body has more than 40 lines: a long signature is a list, not a thought."""
    functions = [
        n
        for n in ast.walk(tree_of(source))
        if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    return [f.name for f in functions if (f.end_lineno or 0) - f.body[0].lineno + 1 > 40]


def lines_too_many(source: str) -> int:
    return max(0, len(source.splitlines()) - 300)


def passed_by_position(source: str, file: str) -> list[str]:
    """Crowded functions; typer names the arguments of a command."""
    return [] if file.startswith("cli/") else crowded_functions(source)


# each says what is wrong with a file; nothing, if it is right
RULES: dict[str, Callable[[str, str], Any]] = {
    "imports": order_broken,
    "unsafe": lambda source, file: unsafe(source),
    "lines": lambda source, file: lines_too_many(source),
    "long": lambda source, file: long_functions(source),
    "crowded": passed_by_position,
}


def faults_of(files: dict[str, str]) -> dict[str, dict[str, Any]]:
    """What is wrong, by rule and file."""
    wrong: dict[str, dict[str, Any]] = {rule: {} for rule in RULES}
    for file, source in files.items():
        for rule, look in RULES.items():
            if seen := look(source, file):
                wrong[rule][file] = seen
    return wrong


@pytest.fixture(scope="module")
def faults() -> dict[str, dict[str, Any]]:
    assert len(NAMES) > 500  # or it was looked for elsewhere
    return faults_of({name: (SOURCE / name).read_text() for name in NAMES})


def test_a_file_imports_only_what_stands_before_it(faults: dict[str, dict[str, Any]]) -> None:
    assert faults["imports"] == {}


def test_layers_need_four_files_of_the_core_and_five_of_the_core_need_layers() -> None:
    used: dict[str, set[str]] = {name: set() for name in NAMES}
    for name in NAMES:
        package = ".".join(("fedblocks", *Path(name).parts[:-1]))
        names = imported(ast.parse((SOURCE / name).read_text()), package)
        used[name] = {".".join(path.split(".")[:3]) for path in names}
    above = {
        name
        for name in NAMES
        if name.startswith("core/") and layers(list(used[name])) & {"layers", "kernels"}
    }
    below = {module for name in NAMES if name.startswith("layers/") for module in used[name]}
    assert above == ABOVE_LAYERS
    assert {module for module in below if module.startswith("fedblocks.core")} == BELOW_LAYERS


def test_a_file_loads_no_pickle_and_evaluates_no_text(faults: dict[str, dict[str, Any]]) -> None:
    assert faults["unsafe"] == {}


def test_a_file_has_at_most_300_lines_and_its_functions_at_most_40(
    faults: dict[str, dict[str, Any]],
) -> None:
    assert faults["lines"] == {}
    assert faults["long"] == {}


def test_a_function_is_passed_at_most_six_arguments_by_position(
    faults: dict[str, dict[str, Any]],
) -> None:
    assert faults["crowded"] == {}


def test_a_file_that_breaks_every_rule_is_named_under_each() -> None:
    many = ", ".join(f"a{number}" for number in range(7))
    crowded = f"def f({many}):\n" + "    eval(a0)\n" * 41
    source = "import fedblocks.runs.run\n" + crowded + "\n" * 300
    wrong = faults_of({"core/good.py": "import torch", "core/bad.py": source, "cli/bad.py": source})
    everywhere = {"core/bad.py", "cli/bad.py"}
    assert {rule: set(files) for rule, files in wrong.items()} == {
        "imports": {"core/bad.py"},
        "unsafe": everywhere,
        "lines": everywhere,
        "long": everywhere,
        "crowded": {"core/bad.py"},
    }


def test_every_folder_of_the_package_has_its_place_in_the_order() -> None:
    assert {Path(name).parts[0].removesuffix(".py") for name in NAMES} <= MAY_IMPORT.keys()


@pytest.mark.parametrize(
    ("file", "source", "wrong"),
    [
        ("core/a.py", "from fedblocks.methods import METHODS", "methods"),
        ("core/a.py", "from ..engines.auto import pick", "engines"),
        ("core/a.py", "def f():\n    import fedblocks.runs.run", "runs"),
        ("core/a.py", "from fedblocks import Net", "fedblocks"),
        ("methods/a.py", "from ..data import digits", "data"),
        ("nets/a.py", "from fedblocks import methods", "methods"),
        ("engines/a.py", "from ..runs import store", "runs"),
        ("runs/a.py", "def f():\n    from fedblocks.testing import check_method", "testing"),
        ("cli.py", "from fedblocks.testing import check_method", "testing"),
    ],
)
def test_an_import_against_the_order_is_found(file: str, source: str, wrong: str) -> None:
    assert order_broken(source, file) == {wrong}


@pytest.mark.parametrize(
    ("file", "source"),
    [
        ("runs/a.py", "from fedblocks import __version__"),
        ("methods/a.py", "import torch\nfrom ..core.method import Method\nfrom .b import B"),
        (
            "cli.py",
            "from fedblocks.runs import run\ndef check():\n    from fedblocks.testing "
            "import check_method",
        ),
    ],
)
def test_an_import_along_the_order_is_accepted(file: str, source: str) -> None:
    assert order_broken(source, file) == set()


@pytest.mark.parametrize(
    "source",
    [
        "import pickle",
        "from joblib import load",
        "import yaml",
        "import torch\ntorch.load(path)",
        "import torch as t\nt.save(state, path)",
        "from torch import load",
        "np.load(path, allow_pickle=True)",
        "np.load(path, allow_pickle=trusted)",
        "eval(text)",
        "exec(text)",
    ],
)
def test_a_way_to_run_foreign_code_is_found(source: str) -> None:
    assert unsafe(source)


@pytest.mark.parametrize(
    "source", ["net.eval()", "np.load(path, allow_pickle=False)", "json.load(file)"]
)
def test_harmless_calls_of_a_like_name_are_accepted(source: str) -> None:
    assert unsafe(source) == set()


def test_seven_arguments_by_position_are_too_many_and_six_are_not() -> None:
    method = "class A:\n def f(self, a, b, c, d, e, f{}): pass"
    assert crowded_functions(method.format("")) == crowded_functions(method.format(", *, g")) == []
    assert crowded_functions(method.format(", g")) == ["f"]
    assert crowded_functions("def f(a, b, c, d, e, f, g): pass") == ["f"]
    assert crowded_functions("@triton.jit\ndef f(a, b, c, d, e, f, g): pass") == []


def test_a_function_of_41_lines_is_found_and_one_of_40_is_not() -> None:
    body = "\n".join(["    x = 1"] * 40)
    assert long_functions(f"def f():\n{body}") == []
    assert long_functions(f"def f():\n{body}\n    x = 1") == ["f"]
