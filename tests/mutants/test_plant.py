"""A bug reaches functions that are loaded already, whatever the tests did to the collector."""

from __future__ import annotations

import gc
import importlib.util
from pathlib import Path

from mutants.plant import functions_of, replace_code

OLD, NEW = b"def f(x):\n    return x + 1\n", b"def f(x):\n    return x - 1\n"


def test_functions_that_are_loaded_and_frozen_get_the_bug(tmp_path: Path) -> None:
    file = tmp_path / "loaded.py"
    file.write_bytes(OLD)
    spec = importlib.util.spec_from_file_location("loaded", file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    gc.freeze()  # as tests/conftest.py does
    functions = functions_of(tmp_path)[str(file)]
    assert replace_code(functions, str(file), OLD, NEW) == 1 and module.f(1) == 0
