"""The table of studies/cold_start.py: how new clients do by the number of their examples."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from fedblocks.reports.student import half_width

NUMBERS = ("0", "1", "5", "20", "all")
GLOBAL = "fedavg"  # the model that learns nothing from a new client
HEAD = """## New clients

Made by `studies/cold_start.py`: each method is trained once for each of three seeds on a bed of the
[suite](suite.md), with its defaults. Then clients that never trained join as the method says, with
0, 1, 5, 20 or all of their training examples, and are tested. Accuracies in %, means over new
clients and seeds. "Ahead from": the number of examples from which on the mean is above that of the
global model (FedAvg, the same for any number), in bold if with all examples the paired difference
over seeds is above 0 with its 95 % interval (Student). kB are what a new client is sent; ms what
one spends on joining with all of its examples and its test, on one core.
"""
Runs = Mapping[str, Mapping[str, Any]]  # "bed/method/seed" -> examples -> what came out


def section(path: Path) -> str:
    """As Markdown; nothing where nothing is stored."""
    if not path.is_file():
        return ""
    runs: Runs = json.loads(path.read_text(encoding="utf-8"))
    beds = dict.fromkeys(key.split("/")[0] for key in runs)
    return "\n".join([HEAD, *(table(bed, runs) for bed in beds)])


def table(bed: str, runs: Runs) -> str:
    """One bed: a row for each method that has all seeds of the global model."""
    methods = dict.fromkeys(key.split("/")[1] for key in runs if key.startswith(f"{bed}/"))
    seeds = seeds_of(bed, GLOBAL, runs)
    lines = [row(bed, name, seeds, runs) for name in methods if seeds_of(bed, name, runs) == seeds]
    head = f"| {bed} | {' | '.join(NUMBERS)} | ahead from | kB | ms |"
    return "\n".join([head, "|---" * (len(NUMBERS) + 4) + "|", *lines, ""])


def seeds_of(bed: str, method: str, runs: Runs) -> list[str]:
    return sorted(key.split("/")[2] for key in runs if key.startswith(f"{bed}/{method}/"))


def row(bed: str, method: str, seeds: Sequence[str], runs: Runs) -> str:
    own = {n: means(bed, method, seeds, runs, n) for n in NUMBERS}
    world = {n: means(bed, GLOBAL, seeds, runs, n) for n in NUMBERS}
    shown = [f"{100 * fmean(own[n]):.1f}" for n in NUMBERS]
    last = [runs[f"{bed}/{method}/{seed}"]["all"] for seed in seeds]
    sent = fmean(one["bytes"] for one in last) / 1e3
    spent = fmean(1e3 * one["seconds"] / len(one["accuracies"]) for one in last)
    ahead = "-" if method == GLOBAL else ahead_from(own, world)
    return f"| {method} | {' | '.join(shown)} | {ahead} | {sent:.0f} | {spent:.0f} |"


def means(bed: str, method: str, seeds: Sequence[str], runs: Runs, examples: str) -> list[float]:
    """Mean accuracy of new clients, for each seed."""
    return [fmean(runs[f"{bed}/{method}/{seed}"][examples]["accuracies"]) for seed in seeds]


def ahead_from(own: Mapping[str, list[float]], world: Mapping[str, list[float]]) -> str:
    """The number of examples from which on the mean is above the global model's."""
    gaps = {n: [a - b for a, b in zip(own[n], world[n], strict=True)] for n in NUMBERS}
    ahead = "never"
    for n in reversed(NUMBERS):
        if fmean(gaps[n]) <= 0:
            break
        ahead = n
    sure = fmean(gaps["all"]) - half_width(gaps["all"]) > 0
    return f"**{ahead}**" if sure else ahead
