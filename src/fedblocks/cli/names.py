"""Names of methods and presets without importing torch: read from the source, where
each list is written out.
"""

from __future__ import annotations

from collections.abc import Iterator


def method_names() -> list[str]:
    """Every method, those of installed packages among them."""
    from importlib.metadata import entry_points

    others = [point.name for point in entry_points(group="fedblocks.methods")]
    return sorted({*_keys("methods/__init__.py", "METHODS"), *others})


def preset_names() -> list[str]:
    """Every configuration by name."""
    return sorted(_keys("config/presets.py", "PRESETS"))


def _keys(file: str, variable: str) -> Iterator[str]:
    """The keys of the dictionaries that are given to a variable, or added to it, in a
    file of the library.
    """
    import ast  # inside functions, as the help of the command needs none of this
    from importlib.resources import files

    tree = ast.parse((files("fedblocks") / file).read_text(encoding="utf-8"))
    for node in tree.body:
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        value = getattr(node, "value", None)
        is_ours = any(isinstance(t, ast.Name) and t.id == variable for t in targets)
        for key in value.keys if is_ours and isinstance(value, ast.Dict) else ():
            if isinstance(key, ast.Constant) and isinstance(key.value, str):
                yield key.value
