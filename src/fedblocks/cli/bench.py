"""`fedblocks bench`: how fast it is on this machine, beside a hand-written PyTorch loop."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedblocks.cli.output import AsJson, say, show_json, show_table, stoppable
from fedblocks.core.errors import UserError

if TYPE_CHECKING:
    from fedblocks.bench.measure import Result

Jobs = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[JOB]...",
        help="Jobs, e.g. J1 (50 clients, LeNet) or J2/pfedmb; docs/speed.md lists them. "
        "Default: all but J2, J9 and J15.",
    ),
]
Out = Annotated[
    Path | None,
    typer.Option("--out", metavar="FILE", help="Also write the results to a JSON file."),
]
Device = Annotated[str, typer.Option("--device", help="Device: cpu, cuda, or one GPU: cuda:1.")]
Repeat = Annotated[
    int, typer.Option("--repeat", min=1, help="Timed rounds of each job, after one to warm up.")
]
Engine = Annotated[
    list[str] | None,
    typer.Option(
        "--engine", help="Engine: auto, sequential, vectorised, processes; may be repeated."
    ),
]
Precision = Annotated[
    str,
    typer.Option(
        "--precision", help="Of our products: float32, tf32 or bf16; the loop's are float32."
    ),
]
Large = Annotated[bool, typer.Option("--large", help="Include J8 with a million clients.")]
Peers = Annotated[
    bool,
    typer.Option("--peers", help="Time jobs J1, J5, J7 against other libraries, in a checkout."),
]


def bench(
    jobs: Jobs = None,
    as_json: AsJson = False,
    out: Out = None,
    device: Device = "cpu",
    repeat: Repeat = 3,
    engine: Engine = None,
    precision: Precision = "float32",
    large: Large = False,
    peers: Peers = False,
) -> None:
    """Time standard jobs against a plain PyTorch loop.

    Both do the same work in the same process, in turns.
    """

    def action() -> None:
        if peers:
            return _beside_peers(jobs or [], repeat, out, as_json)
        names = jobs or []
        engines = engine or ["auto"]
        results = _time_jobs(
            names,
            device,
            repeat,
            engines,
            precision=check_precision(precision),
            large=large,
            out=out,
            as_json=as_json,
        )
        if as_json:
            show_json(results)
        else:
            _show(results)

    stoppable(action)


def check_precision(precision: str) -> str:
    """One that there is."""
    if precision not in ("float32", "tf32", "bf16"):
        raise UserError(f'there is no precision "{precision}"', "use float32, tf32 or bf16")
    return precision


def _time_jobs(
    jobs: list[str],
    device: str,
    repeat: int,
    engines: list[str],
    *,
    precision: str,
    large: bool,
    out: Path | None,
    as_json: bool,
) -> dict[str, Any]:
    """All results; each is told, and stored, as soon as it is there."""
    from fedblocks.bench.grid import GRID, measure_grid
    from fedblocks.bench.jobs import choose_jobs
    from fedblocks.bench.lanes import NAME, measure_lanes
    from fedblocks.bench.suite import run_jobs, write
    from fedblocks.engines.devices import find_device
    from fedblocks.runs.run import tf32

    others = [name for name in jobs if name not in (NAME, GRID)]
    wanted = choose_jobs(others, large) if others or not jobs else []

    def tell(results: Sequence[Result], so_far: dict[str, Any]) -> None:
        if out is not None:
            write(out, so_far)
        for result in () if as_json else results:
            say(f"{result.job} {result.ours.who}: {result.speedup:.2f} times the plain loop")

    find_device(device)
    with tf32(False):  # for both sides, as in a run
        timings = run_jobs(wanted, device, repeat, engines, tell, precision)
        if NAME in jobs:
            timings["lanes"] = measure_lanes(device, repeat)
        if GRID in jobs:
            timings["grid"] = measure_grid(device)
    if out is not None:
        write(out, timings)
    return timings


def _beside_peers(jobs: list[str], repeat: int, out: Path | None, as_json: bool) -> None:
    from fedblocks.bench.page import PEER_COLUMNS, peer_cells
    from fedblocks.bench.peers import run_peers
    from fedblocks.bench.suite import write

    def tell(so_far: dict[str, Any]) -> None:
        if out is not None:
            write(out, so_far)
        if not as_json:
            say(f"{len(so_far['results'])} timed, {len(so_far['failed'])} failed")

    results = run_peers(jobs, repeat, tell)
    if as_json:
        return show_json(results)
    headings = {name: name for name in PEER_COLUMNS}
    rows = [dict(zip(PEER_COLUMNS, peer_cells(result))) for result in results["results"]]
    show_table(headings, rows)
    for what, reason in results["failed"].items():
        say(f"{what} not measured: {reason}")
    for command in results["missing"].values():
        say(f"not installed; to measure it too: {command}")


def _show(timings: dict[str, Any]) -> None:
    from fedblocks.bench.page import grid

    rows = [
        {
            **result,
            "engine": result["ours"]["who"],
            "seconds": result["ours"]["median_seconds"],
            "loop": result["plain"]["median_seconds"],
            "rate": round(result["ours"]["examples_per_second"]),
            "peak": round(result["ours"]["peak_bytes"] / 2**20),
        }
        for result in timings["results"]
    ]
    headings = {
        "job": "job",
        "method": "method",
        "engine": "engine",
        "cohort": "clients",
        "rate": "examples/s",
        "seconds": "s/round",
        "loop": "plain loop",
        "speedup": "times the loop",
        "cpu_speedup": "in CPU time",
        "per_operation": "time/operation",
        "share_of_floor": "share of floor",
        "peak": "peak MiB",
    }
    show_table(headings, rows)
    if "lanes" in timings:
        lanes = timings["lanes"]
        beside_one = f"{lanes['times_one']:.2f} times as long as one of them alone"
        say(f"J9: {lanes['lanes']} lanes take {beside_one}, and are")
        say(f"{lanes['gain']:.2f} times as fast as one after another.")
    if "grid" in timings:
        say(grid(timings["grid"]))
    for job, reason in timings["choices"].items():
        say(f"{job}: auto chose {reason}")
    for job, reason in timings["skipped"].items():
        say(f"{job} left out: {reason}")
