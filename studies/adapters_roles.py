"""Personal adapters of a small character transformer for the roles of Shakespeare's plays.

    python studies/adapters_roles.py --data FOLDER --prepare shakespeare_roles.json.xz
    python studies/adapters_roles.py --data FOLDER [--device cuda] [--minutes 9]

The first line trains the base on the roles of 25 plays and cuts those of the others into windows;
see studies/roles/prepare.py. The second one runs the study and writes
results/adapters-shakespeare.json after every cell; what is there is not run again, so the same line
goes on where it was stopped. It ends before `--minutes` are over. `--tiny` is the same with four
roles and one round, to see that everything works.

A seed draws 50 of the large roles of 12 plays, and 10 others that never train. What is the same for
all methods stands in `Settings` (studies/adapters/cells.py) and `RoleSettings`
(studies/roles/cells.py).
"""

from __future__ import annotations

from pathlib import Path

import torch
from adapters.command import parser_of, run_study
from roles.cells import QUESTIONS, TINY, RoleSettings, RoleStudy
from roles.prepare import Material, prepare

OUT = Path("results/adapters-shakespeare.json")


def main(words: list[str] | None = None) -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--prepare", type=Path, metavar="FILE")
    chosen = parser.parse_args(words)
    if chosen.prepare:
        prepare(chosen.prepare, chosen.data)
        return
    settings = TINY if chosen.tiny else RoleSettings()
    work = RoleStudy(settings, torch.device(chosen.device), Material.read(chosen.data))
    run_study(work, QUESTIONS, chosen.out or OUT, chosen)


if __name__ == "__main__":
    main()
