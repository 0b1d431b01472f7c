"""Table and verdicts of the study, made from stored cells and from nothing else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fedblocks.reports.intervals import Interval, bootstrap_interval

LOCAL, AVERAGED, CENTRAL = "local_lora", "fedavg_lora", "central_lora"
POOLED = ("ifca_lora", "pfedmb_lora")
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
# what is compared, with what, and by how many points it was expected to be ahead
EXPECTED = [
    ("iid", AVERAGED, CENTRAL, -3.0),
    *(("dirichlet", name, LOCAL, 2.0) for name in ("fedsa_lora", "dual_lora", *POOLED)),
    *(("dirichlet", name, AVERAGED, 2.0) for name in ("fedsa_lora", "dual_lora", *POOLED)),
    ("dirichlet", "svd_ranks", "padded_ranks", 1.0),
]
Cells = list[dict[str, Any]]  # of one method, a seed each
Chosen = dict[tuple[str, str], Cells]  # by split and method


def section(path: Path) -> str:
    """What a page shows of a file of results."""
    if not path.is_file():
        return f"Not measured yet: there is no `results/{path.name}`."
    return verdicts_and_table(json.loads(path.read_text(encoding="utf-8")))


def bench_section(path: Path) -> str:
    """Seconds and memory of a round, batched and in a loop."""
    if not path.is_file():
        return f"Not measured yet: there is no `results/{path.name}`."
    stored = json.loads(path.read_text(encoding="utf-8"))
    on_cpu = stored["device"] == "cpu"
    load = f", load average {stored['load']:.1f}, so CPU time counts" if on_cpu else ""
    clock = "cpu_seconds" if on_cpu else "seconds"
    unit = "CPU seconds" if on_cpu else "seconds"
    lines = [
        f"{stored['device']}, {stored['threads']} threads{load}; torch {stored['torch']}, "
        f"fedblocks {stored['code']}; {stored['clients']} clients, batches of {stored['batch']}.",
        "",
        f"| a round | batched, {unit} | loop, {unit} | loop / batched | peak / needed memory |",
        "|---|---|---|---|---|",
    ]
    for name, one in stored["rounds"].items():
        times = [f"{one[way][clock]:.3g}" for way in ("batched", "loop")]
        memory = f"{one['memory']['peak / needed']:.2f}" if "memory" in one else "-"
        ratio = f"{one['loop / batched'][clock]:.2f}"
        lines.append(f"| {' | '.join([name, *times, ratio, memory])} |")
    return "\n".join(lines)


def verdicts_and_table(stored: dict[str, Any]) -> str:
    """As Markdown."""
    chosen = choose(stored)
    if not chosen:
        return "No cell has been run yet."
    lines = [about(stored, chosen)]
    for split in dict.fromkeys(split for split, _ in chosen):
        lines += ["", f"{split}:", "", f"| {' | '.join(COLUMNS)} |", "|---" * len(COLUMNS) + "|"]
        lines += [row(name, chosen, split) for s, name in chosen if s == split]
    return "\n".join([*lines, "", *verdicts(chosen)])


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


def about(stored: dict[str, Any], chosen: Chosen) -> str:
    cells = [cell for own in chosen.values() for cell in own]
    distinct = lambda name: ", ".join(sorted({cell[name] for cell in cells}))
    s = stored["settings"]
    return (
        f"{s['clients']} clients of {s['size']} reactions, {s['rounds']} rounds of one epoch, rank "
        f"{s['rank']} on queries and values, Adam; rates {', '.join(map(str, s['rates']))} chosen "
        f"by validation with seed {s['seeds'][0]}. {distinct('device')}, torch "
        f"{distinct('torch')}, fedblocks {distinct('code')}."
    )


def row(name: str, chosen: Chosen, split: str) -> str:
    own = chosen[split, name]
    means = [100 * cell["mean"] for cell in own]
    spread = f" ± {np.std(means, ddof=1):.1f}" if len(means) > 1 else ""
    sent = [np.mean([c["bytes"][way] for c in own]) / 1000 for way in ("up", "down")]
    clients = 1 if name == CENTRAL else len(own[0]["accuracies"])
    return (
        "| "
        + " | ".join(
            [
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
        )
        + " |"
    )


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
    found = pairs(name, other, chosen, split)
    return "-" if found is None else points(bootstrap_interval(found))


def points(interval: Interval) -> str:
    return f"{interval.mean:+.1f} [{interval.low:+.1f}, {interval.high:+.1f}]"


def below_local(name: str, chosen: Chosen, split: str) -> str:
    found = pairs(name, LOCAL, chosen, split)
    return "-" if found is None else f"{100 * np.mean(found < 0):.0f}"


def verdicts(chosen: Chosen) -> list[str]:
    """A sentence for each comparison that was announced."""
    return [
        f"- {split}: {name} - {other} = {points(interval)} points; expected {least:+.0f} or more: "
        f"{judge(interval, least)}."
        for split, name, other, least in EXPECTED
        if (found := pairs(name, other, chosen, split)) is not None
        for interval in [bootstrap_interval(found)]
    ]


def judge(interval: Interval, least: float) -> str:
    """Whether a difference is what was expected."""
    if interval.low >= least:
        return "yes"
    if interval.high < least:
        return "no"
    return "the mean is, the interval is not" if interval.mean >= least else "not reproduced"
