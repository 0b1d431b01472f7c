"""The tables of docs/speed.md, made from stored results and from nothing else."""

from __future__ import annotations

import json
import re
from pathlib import Path
from statistics import median
from typing import Any

_PLACE = re.compile(r"<!-- bench:([\w-]+) -->\n.*?<!-- /bench -->", re.DOTALL)
COLUMNS = [
    "job",
    "engine",
    "clients",
    "s a round",
    "plain loop, s",
    "times the loop",
    "in CPU time",
    "examples/s",
]
PEER_COLUMNS = [
    "job",
    "clients",
    "peer",
    "s a round",
    "plain loop, s",
    "sequential, s",
    "processes, s",
    "peer / sequential",
    "peer / processes",
    "peer / sequential in CPU time",
    "load",
]
# beside FedAvg's: 1 = as long as FedAvg takes for as many operations
WORK = "time for its arithmetic"


def with_results(text: str, folder: Path) -> str:
    """A page with a table at each place `<!-- bench:NAME -->`, from FOLDER/bench-NAME.json."""

    def fill(place: re.Match[str]) -> str:
        table = section(folder / f"bench-{place[1]}.json")
        return f"<!-- bench:{place[1]} -->\n{table}\n<!-- /bench -->"

    return _PLACE.sub(fill, text)


def section(path: Path) -> str:
    """What was run where, and what came out."""
    if not path.is_file():
        return f"Not measured yet: there is no `results/{path.name}`."
    stored = json.loads(path.read_text())
    if "missing" in stored:
        return peers(stored, path.name)
    if "nets" in stored:
        return "\n".join([about(stored, path.name), "", *zoo(stored["nets"])])
    lines = [about(stored, path.name)]
    if stored["results"]:
        lines += ["", *table(stored["results"])]
    if "lanes" in stored:
        lines += ["", lanes(stored["lanes"])]
    if "grid" in stored:
        lines += ["", grid(stored["grid"])]
    lines += [f"\n{job} left out: {reason}" for job, reason in stored["skipped"].items()]
    return "\n".join(lines)


def about(stored: dict[str, Any], name: str) -> str:
    """Machine, versions and command, in one paragraph."""
    env = stored["env"]
    gpus = ", ".join(name for name in env["devices"] if name != "cpu")
    machine = gpus or f"{env['cpu']}, {env['cpu_count']} cores"
    versions = f"torch {env['versions']['torch']}, Python {env['python']}, {env['platform']}"
    load = f", load average {stored['load']:.1f} at the end" if "load" in stored else ""
    first, *words = env["command"]
    program = f"python studies/{first}" if first.endswith(".py") else "fedblocks"
    command = " ".join([program, *words])
    return (
        f"{machine}; {versions}; {env['threads']} threads{load}. `{command}`, stored in "
        f"`results/{name}`."
    )


def lanes(result: dict[str, Any]) -> str:
    """One sentence on J9."""
    one, every = (1000 * median(result[who]) for who in ("one_seconds", "all_seconds"))
    return (
        f"J9: {result['lanes']} lanes of {result['clients']} clients take {every:.1f} ms a round, "
        f"one {one:.1f} ms: {result['times_one']:.2f} times as long, and {result['gain']:.2f} "
        "times as fast as one after another."
    )


def grid(result: dict[str, Any]) -> str:
    """One sentence on J15."""
    return (
        f"J15: {result['runs']} runs of {result['rounds']} rounds take "
        f"{result['seconds_alone']:.1f} s one after another ({result['cpu_alone']:.1f} s of "
        f"processors) and {result['seconds_lanes']:.1f} s ({result['cpu_lanes']:.1f}) as lanes, "
        f"{result['seconds_in_rounds']:.1f} s of it in rounds; a further run is ready in "
        f"{result['preparation']:.2f} s."
    )


def table(results: list[dict[str, Any]]) -> list[str]:
    """One line for each result; methods are also put beside FedAvg, if it is among them."""
    fedavg = next((result for result in results if result["job"] == "J2/fedavg"), None)
    columns = [*COLUMNS, "share of floor", "peak MiB", *([WORK] if fedavg else [])]
    rows = [cells(result) for result in results]
    if fedavg:
        for row, result in zip(rows, results, strict=True):
            row.append(f"{for_its_work(result, fedavg):.2f}")
    lines = [f"| {' | '.join(row)} |" for row in rows]
    return [f"| {' | '.join(columns)} |", f"|{'---|' * len(columns)}", *lines]


def zoo(nets: list[dict[str, Any]]) -> list[str]:
    """One line for each net of the zoo."""
    head = ["| net | loop, ms a round | ours, ms | times the loop | half between | pairs |"]
    return [*head, "|---|---|---|---|---|---|", *map(_net, nets)]


def _net(one: dict[str, Any]) -> str:
    low, high = one["half_between"]
    return (
        f"| {one['net']} | {one['loop_ms']:,.0f} | {one['ours_ms']:,.0f} | "
        f"{one['times_the_loop']:.2f} | {low:.2f} to {high:.2f} | {one['pairs']} |"
    )


def for_its_work(result: dict[str, Any], fedavg: dict[str, Any]) -> float:
    """Seconds over FedAvg's, divided by operations over FedAvg's."""
    ours, theirs = (r["ours"]["median_seconds"] / r["flops_per_example"] for r in (result, fedavg))
    return float(ours / theirs)


def cells(result: dict[str, Any]) -> list[str]:
    """One line of the table."""
    ours, plain = result["ours"], result["plain"]
    return [
        result["job"],
        ours["who"],
        f"{result['cohort']:,}",
        f"{ours['median_seconds']:.3f}",
        f"{plain['median_seconds']:.3f}",
        f"{result['speedup']:.2f}",
        f"{result['cpu_speedup']:.2f}",
        f"{ours['examples_per_second']:,.0f}",
        f"{100 * result['share_of_floor']:.0f} %",
        f"{ours['peak_bytes'] / 2**20:,.0f}",
    ]


def peers(stored: dict[str, Any], name: str) -> str:
    """Other libraries beside ours, and what could not be measured."""
    head = f"| {' | '.join(PEER_COLUMNS)} |\n|{'---|' * len(PEER_COLUMNS)}"
    results = stored["results"]
    lines = [about(stored, name), "", head]
    lines += [f"| {' | '.join(peer_cells(result))} |" for result in results]
    noted = [result for result in results if result["hello"]["note"]]
    notes = {result["peer"]: result["hello"]["note"] for result in noted}
    lines += [f"\n{peer}: {note}." for peer, note in notes.items()]
    lost = {**stored["failed"], **dict.fromkeys(stored["missing"], "not installed")}
    lines += [f"\n{what} not measured: {reason}" for what, reason in lost.items()]
    return "\n".join(lines)


def peer_cells(result: dict[str, Any]) -> list[str]:
    """One job with one peer."""
    sides, hello = result["sides"], result["hello"]
    order = (result["peer"], "plain loop", "sequential", "processes")
    seconds = [f"{sides[who]['median_seconds']:.3f}" for who in order]
    faster = [f"{result['times_peer'][who]:.2f}" for who in ("sequential", "processes")]
    ending = [f"{result['times_peer_in_cpu']['sequential']:.2f}", f"{result['load']:.1f}"]
    clients = f"{result['cohort']} of {result['clients']}"
    package = f"{hello['package']} {hello['version']}"
    return [result["job"], clients, package, *seconds, *faster, *ending]
