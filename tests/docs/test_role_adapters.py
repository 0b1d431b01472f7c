"""The example of adapters for roles runs from a file of speeches to scores of every method."""

from __future__ import annotations

import importlib.util
import json
import lzma
import random
import sys
from pathlib import Path
from types import ModuleType

import pytest

EXAMPLE = Path(__file__).parents[2] / "examples" / "role_adapters.py"


def example() -> ModuleType:
    spec = importlib.util.spec_from_file_location("role_adapters", EXAMPLE)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def write_roles(path: Path, plays: int, characters: int) -> None:
    """Plays of one role each, which says random letters."""
    draw = random.Random(0)
    text = lambda: "".join(draw.choices("abcde ,", k=characters))
    speeches = {f"play{number:02d}/ROLE": [text()] for number in range(plays)}
    with lzma.open(path, "wt", encoding="utf-8") as file:
        json.dump({"users": list(speeches), "speeches": speeches}, file)


def test_the_example_scores_every_method(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    module = example()
    write_roles(tmp_path / "roles.json.xz", plays=27, characters=1200)
    monkeypatch.setattr(module, "LEAST", 1200)
    small = ["--steps", "2", "--rounds", "1", "--clients", "2"]
    words = [str(tmp_path / "roles.json.xz"), "--out", str(tmp_path / "runs"), *small]
    monkeypatch.setattr(sys, "argv", ["role_adapters.py", *words])
    module.main()
    out = capsys.readouterr().out
    assert "2 roles, a base of" in out
    for name in ("base", "local", "fedavg_lora", "ffa_lora", "fedsa_lora", "product_lora"):
        assert f"{name:12} mean 0." in out
    assert (tmp_path / "runs" / "dual_lora" / "frozen").is_dir()


def test_an_example_is_a_window_of_characters_and_the_next_ones() -> None:
    module = example()
    x, y = module.as_examples("ab" * 60)
    assert x.shape == y.shape == (2, module.STEPS)
    assert (x[0, 1:] == y[0, :-1]).all() and y[0, -1] == x[1, 0]
