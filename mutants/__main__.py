"""python -m mutants --seed 0 1 --count 300 --jobs 2"""

from __future__ import annotations

import argparse
from itertools import cycle
from pathlib import Path

from mutants.draws import add_draw
from mutants.project import STRATA, Project
from mutants.report import print_tables, write_page
from mutants.session import Session


def main() -> None:
    words = argparse.ArgumentParser(
        "python -m mutants", description="Do the tests notice small bugs?"
    )
    words.add_argument(
        "--seed", type=int, nargs="+", default=[0], help="another seed plants other bugs"
    )
    words.add_argument(
        "--count", type=int, nargs="+", default=[300], help="fresh bugs, of each seed or of all"
    )
    words.add_argument("--jobs", type=int, default=2, help="processes side by side")
    words.add_argument("--seconds", type=float, default=20.0, help="of tests for one bug")
    words.add_argument("--minutes", type=float, default=None, help="a later call goes on")
    words.add_argument("--only", nargs="+", default=[], choices=STRATA, help="groups of packages")
    chosen = words.parse_args()
    project = Project(Path.cwd())
    how = (chosen.jobs, chosen.seconds, chosen.minutes, tuple(chosen.only))
    draws = {}
    for seed, count in zip(chosen.seed, cycle(chosen.count)):
        session = Session(project, seed, count, *how)
        draws[seed] = list(session.run().values())
        if session.is_complete():
            add_draw(project, seed, draws[seed])
    print_tables(project, draws)
    write_page(project)


if __name__ == "__main__":
    main()
