"""Tables and verdicts of the studies of adapters, made from stored cells and from nothing else."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from adapters.cells import CENTRAL, Schedule

from fedblocks.reports.intervals import Interval, bootstrap_interval

LOCAL, AVERAGED = "local_lora", "fedavg_lora"
TITLES = {
    LOCAL: "Local",
    AVERAGED: "FedAvgLoRA",
    CENTRAL: "central LoRA",
    "fedsa_lora": "FedSA",
    "dual_lora": "Dual",
    "ifca_lora": "pooled LoRA (IFCA)",
    "pfedmb_lora": "pooled LoRA (pFedMB)",
    "svd_ranks": "product-svd with ranks 4/8/16",
    "padded_ranks": "zero-padding",
}
PERSONAL = ("fedsa_lora", "dual_lora", "ifca_lora", "pfedmb_lora")
COLUMNS = [
    "method",
    "learning rate",
    "seeds",
    "test accuracy, %",
    "minus Local, points",
    "minus FedAvgLoRA, points",
    "clients below Local, %",
    "cold start, %",
    "kB up / down",
]
Cells = list[dict[str, Any]]  # of one method, a seed each
Chosen = dict[tuple[str, str], Cells]  # by split and method


@dataclass(frozen=True)
class Question:
    """What is compared, with what, and by how many points it was expected to be ahead."""

    split: str
    name: str
    other: str
    least: float


@dataclass(frozen=True)
class Questions:
    """What a study says of itself, and what it was made to answer."""

    about: str  # a sentence with names of settings in braces
    schedule: Schedule
    asked: tuple[Question, ...]


def usual_questions(split: str) -> tuple[Question, ...]:
    """Those of every study; `split` is the one whose clients differ."""
    return (
        Question("iid", AVERAGED, CENTRAL, -3.0),
        *(Question(split, name, LOCAL, 2.0) for name in PERSONAL),
        *(Question(split, name, AVERAGED, 2.0) for name in PERSONAL),
        Question(split, "svd_ranks", "padded_ranks", 1.0),
    )


def section(path: Path, questions: Questions) -> str:
    """What a page shows of a file of results."""
    if not path.is_file():
        return f"Not measured yet: there is no `results/{path.name}`."
    return verdicts_and_table(json.loads(path.read_text(encoding="utf-8")), questions)


def verdicts_and_table(stored: dict[str, Any], questions: Questions) -> str:
    """As Markdown."""
    chosen = choose(stored)
    if not chosen:
        return "No cell has been run yet."
    lines = [about(stored, chosen, questions.about)]
    for split in dict.fromkeys(split for split, _ in chosen):
        lines += ["", f"{split}:", "", f"| {' | '.join(COLUMNS)} |", "|---" * len(COLUMNS) + "|"]
        lines += [row(name, chosen, split) for s, name in chosen if s == split]
    lines += ["", *(verdict(question, chosen) for question in questions.asked)]
    missing = questions.schedule.missing(stored)
    return "\n".join([*lines, "", f"Not run yet: {', '.join(missing) or 'nothing'}."])


def choose(stored: dict[str, Any]) -> Chosen:
    """For each split and method, the cells of the learning rate with the best validation accuracy
    with the first seed.
    """
    first = stored["settings"]["seeds"][0]
    by_method: Chosen = {}
    for cell in stored["cells"].values():
        by_method.setdefault((cell["split"], cell["method"]), []).append(cell)
    chosen: Chosen = {}
    for key, cells in by_method.items():
        best = max((c for c in cells if c["seed"] == first), key=lambda c: c["validation"])
        own = [cell for cell in cells if cell["rate"] == best["rate"]]
        chosen[key] = sorted(own, key=lambda cell: cell["seed"])
    return chosen


def about(stored: dict[str, Any], chosen: Chosen, sentence: str) -> str:
    cells = [cell for own in chosen.values() for cell in own]
    distinct = lambda name: ", ".join(sorted({cell[name] for cell in cells}))
    s = stored["settings"]
    return (
        f"{sentence.format_map(s)}; rates {', '.join(map(str, s['rates']))} chosen by validation "
        f"with seed {s['seeds'][0]}. {distinct('device')}, torch {distinct('torch')}, fedblocks "
        f"{distinct('code')}."
    )


def row(name: str, chosen: Chosen, split: str) -> str:
    own = chosen[split, name]
    means = [100 * cell["mean"] for cell in own]
    spread = f" ± {np.std(means, ddof=1):.1f}" if len(means) > 1 else ""
    sent = [np.mean([c["bytes"][way] for c in own]) / 1000 for way in ("up", "down")]
    clients = 1 if name == CENTRAL else len(own[0]["accuracies"])
    columns = [
        name,
        f"{own[0]['rate']:g}",
        str(len(own)),
        f"{np.mean(means):.1f}{spread}",
        gain(name, LOCAL, chosen, split),
        gain(name, AVERAGED, chosen, split),
        below_local(name, chosen, split),
        f"{100 * np.mean([c['cold_start'] for c in own]):.1f}",
        " / ".join(f"{number / clients:.0f}" for number in sent),
    ]
    return f"| {' | '.join(columns)} |"


def pairs(name: str, other: str, chosen: Chosen, split: str) -> npt.NDArray[np.float64] | None:
    """Differences in points of the same clients under the same seeds: [seeds, clients]."""
    if name == other or not {(split, name), (split, other)} <= set(chosen):
        return None
    ours, theirs = (
        {cell["seed"]: np.array(cell["accuracies"]) for cell in chosen[split, one]}
        for one in (name, other)
    )
    seeds = [seed for seed in ours if seed in theirs]
    return 100 * np.stack([ours[seed] - theirs[seed] for seed in seeds])


def gain(name: str, other: str, chosen: Chosen, split: str) -> str:
    differences = pairs(name, other, chosen, split)
    return "-" if differences is None else points(bootstrap_interval(differences))


def points(interval: Interval) -> str:
    return f"{interval.mean:+.1f} [{interval.low:+.1f}, {interval.high:+.1f}]"


def below_local(name: str, chosen: Chosen, split: str) -> str:
    differences = pairs(name, LOCAL, chosen, split)
    return "-" if differences is None else f"{100 * np.mean(differences < 0):.0f}"


def verdict(question: Question, chosen: Chosen) -> str:
    """A sentence for a comparison that was announced."""
    start = f"- {TITLES[question.name]} against {TITLES[question.other]}, {question.split}:"
    differences = pairs(question.name, question.other, chosen, question.split)
    if differences is None:
        return f"{start} not run yet."
    interval, seeds = bootstrap_interval(differences), len(differences)
    return (
        f"{start} {points(interval)} points with {seeds} seed{'s' * (seeds > 1)}: "
        f"{direction(interval)}; {question.least:+.0f} or more was expected: "
        f"{judge(interval, question.least)}."
    )


def direction(interval: Interval) -> str:
    if interval.low > 0:
        return "ahead"
    return "behind" if interval.high < 0 else "no difference shown"


def judge(interval: Interval, least: float) -> str:
    """Whether a difference is what was expected."""
    if interval.low >= least:
        return "yes"
    if interval.high < least:
        return "no"
    return "the mean is, the interval is not" if interval.mean >= least else "not reproduced"
