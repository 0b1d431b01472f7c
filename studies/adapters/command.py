"""What the studies of adapters do alike on a command line: run cells that are not stored yet, and
print the table.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import time
import traceback
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import torch
from adapters.cells import Cell, Settings
from adapters.study import Study
from adapters.table import Questions, verdicts_and_table


def parser_of(text: str | None) -> argparse.ArgumentParser:
    """The words that every study knows."""
    parser = argparse.ArgumentParser(
        description=text, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--minutes", type=float, default=float("inf"))
    parser.add_argument("--cells", default="*", help="only those whose key matches, e.g. 'iid/*/0'")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--tiny", action="store_true")
    return parser


def run_study(work: Study, questions: Questions, out: Path, chosen: argparse.Namespace) -> None:
    """Run cells, print the table, and name the cells that failed."""
    stored = read(out, work.settings)
    failed = run_cells(work, stored, out, chosen)
    print(verdicts_and_table(stored, questions))
    if failed:
        raise SystemExit(f"failed, see above: {', '.join(failed)}")


def run_cells(
    work: Study, stored: dict[str, Any], out: Path, chosen: argparse.Namespace
) -> list[str]:
    """Run the cells that are not in the file yet, as far as the time goes. A cell that fails is
    left out, so that the others are run; the failed ones are returned.
    """
    failed = []
    begin, longest = time.monotonic(), 0.0
    for cell in new_cells(work, stored, chosen.cells):
        if time.monotonic() - begin + longest > 60 * chosen.minutes:
            print(f"stopped before {cell.key}: the time is over", flush=True)
            break
        try:
            result = work.run(cell)
        except Exception:
            traceback.print_exc()
            failed.append(cell.key)
            continue
        longest = max(longest, result["seconds"])
        stored["cells"][cell.key] = result
        write(out, stored)
        gc.collect()  # recorded steps of a cell hold memory of the GPU
        print(f"{cell.key}: {result['mean']:.4f} in {result['seconds']} s", flush=True)
    return failed


def new_cells(work: Study, stored: dict[str, Any], pattern: str) -> Iterator[Cell]:
    """Those that match and are not stored; what is stored may grow in between."""
    for cell in work.schedule.cells(work.settings, stored["cells"]):
        if cell.key not in stored["cells"] and fnmatch(cell.key, pattern):
            yield cell


def read(out: Path, settings: Settings) -> dict[str, Any]:
    """What was run before; a file of other settings is refused."""
    if not out.is_file():
        return {"settings": settings.table(), "cells": {}}
    stored: dict[str, Any] = json.loads(out.read_text(encoding="utf-8"))
    if stored["settings"] != settings.table():
        raise SystemExit(f"{out} was made with other settings: move it, or give another --out")
    return stored


def write(out: Path, stored: dict[str, Any]) -> None:
    """The whole file at once, so that a stop leaves the old one or the new one."""
    out.parent.mkdir(parents=True, exist_ok=True)
    new = out.with_suffix(".new")
    new.write_text(json.dumps(stored, indent=1) + "\n", encoding="utf-8")
    os.replace(new, out)
