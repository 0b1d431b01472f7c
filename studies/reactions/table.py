"""What pages show of the study of reactions, made from stored results and from nothing else."""

from __future__ import annotations

import json
from pathlib import Path

from adapters.table import Questions, usual_questions
from reactions.cells import ReactionStudy

QUIET = 2.5  # load average of two cores that do nothing else
QUESTIONS = Questions(
    "{clients} clients of {size} reactions, {rounds} rounds of one epoch, rank {rank} on queries "
    "and values, Adam",
    ReactionStudy.schedule,
    usual_questions("dirichlet"),
)


def bench_section(path: Path) -> str:
    """Seconds and memory of a round, batched and in a loop."""
    if not path.is_file():
        return f"Not measured yet: there is no `results/{path.name}`."
    stored = json.loads(path.read_text(encoding="utf-8"))
    is_busy = stored["device"] == "cpu" and stored["load"] > QUIET
    load = f", load average {stored['load']:.1f}, so CPU time counts" if is_busy else ""
    clock = "cpu_seconds" if is_busy else "seconds"
    unit = "CPU seconds" if is_busy else "seconds"
    lines = [
        f"{stored['device']}, {stored['threads']} threads{load}; torch {stored['torch']}, "
        f"fedblocks {stored['code']}; {stored['clients']} clients, batches of {stored['batch']}.",
        "",
        f"| a round | batched, {unit} | loop, {unit} | loop / batched | loop / chosen engine "
        "| peak / needed memory |",
        "|---|---|---|---|---|---|",
    ]
    for name, one in stored["rounds"].items():
        times = [f"{one[way][clock]:.3g}" for way in ("batched", "loop")]
        ratio, chosen = f"{one['loop / batched'][clock]:.2f}", "-"
        if "engine" in one:  # whose workers' CPU time is not known here
            chosen = f"{one['loop / chosen']['seconds']:.2f} (`{one['engine']}`)"
        memory = f"{one['memory']['peak / needed']:.2f}" if "memory" in one else "-"
        lines.append(f"| {' | '.join([name, *times, ratio, chosen, memory])} |")
    return "\n".join(lines)
