"""Our rounds beside those of other libraries, each in an environment of its own, taking
turns round by round.
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from statistics import median as _median
from typing import Any

import torch

from fedblocks.bench.jobs import BenchJob, choose_jobs
from fedblocks.bench.materials import LR, materials
from fedblocks.bench.measure import Contender, our_round, take_turns
from fedblocks.bench.plain import PlainLoop
from fedblocks.core.errors import UserError
from fedblocks.engines.processes.engine import Processes
from fedblocks.engines.sequential import Sequential
from fedblocks.runs.storage.environment import environment, now

# of a checkout; the package does not carry them
SCRIPTS = Path(__file__).parents[3] / "benchmarks" / "peers"
PEERS = {"fluke": "fluke-fl==0.8.1", "flower": "flwr[simulation]==1.41.0", "pfl": "pfl==0.6.0"}
JOBS = ["J1", "J5", "J7"]
# clients a round, where all of them would take too long with every peer
FEWER = {"J1": 10, "J5": 20}


def home() -> Path:
    """Where the environments of the peers are."""
    return Path(os.environ.get("FEDBLOCKS_PEERS") or Path.home() / ".cache" / "fedblocks" / "peers")


def how_to_install(name: str) -> str:
    """The command that makes a peer's environment, with the torch that runs here."""
    place = home() / name
    version = torch.__version__.partition("+")[0]
    return f"python -m venv {place} && {place}/bin/pip install torch=={version} '{PEERS[name]}'"


@dataclass(eq=False)
class PeerProcess:
    """A peer at work on one job: it waits until it is told to begin a round, and says
    when it is over.
    """

    job: BenchJob
    process: subprocess.Popen[str]
    errors: Path
    hello: dict[str, Any] = field(default_factory=dict)
    noted: dict[str, Any] = field(default_factory=dict)
    cpu_seconds: list[float] = field(default_factory=list)

    @classmethod
    def start(cls, name: str, job: BenchJob, rounds: int, errors: Path) -> PeerProcess:
        """A peer that has its data and waits for the first round."""
        order = json.dumps({**asdict(job), "rounds": rounds, "lr": LR})
        environ = {**os.environ, "FEDBLOCKS_PEER_JOB": order, "PYTHONPATH": str(SCRIPTS)}
        command = [str(home() / name / "bin" / "python"), str(SCRIPTS / f"with_{name}.py")]
        pipe = subprocess.PIPE
        with errors.open("w") as log:
            process = subprocess.Popen(
                command, stdin=pipe, stdout=pipe, stderr=log, text=True, env=environ
            )
        peer = cls(job, process, errors)
        peer.hello = peer._read_message()
        return peer

    def round(self) -> int:
        """One round; the processor time of the peer and all its children is kept."""
        assert self.process.stdin is not None
        before = tree_seconds(self.process.pid)
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        self.noted = self._read_message()
        self.cpu_seconds.append(tree_seconds(self.process.pid) - before)
        if self.noted["clients"] != self.job.cohort:
            message = f"it trained {self.noted['clients']} clients, not {self.job.cohort}"
            raise UserError(message, "correct its script")
        return self.job.cohort * self.job.examples

    def close(self) -> None:
        """End it; it may be waiting for another round."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        try:
            self.process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            self.process.kill()

    def _read_message(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            last = [text for text in self.errors.read_text().splitlines() if text.strip()][-1:]
            reason = " ".join(last) or "without a word"
            raise UserError(f"it ended early: {reason}", "run its script by hand")
        message: dict[str, Any] = json.loads(line)
        return message


def tree_seconds(root: int) -> float:
    """Processor seconds of a process, of those it started and of those it has waited for."""
    parents: dict[int, int] = {}
    ticks: dict[int, int] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:  # ended while we looked
            continue
        pid = int(stat.parent.name)
        parents[pid] = int(fields[1])
        ticks[pid] = sum(int(tick) for tick in fields[11:15])
    family = {root}
    while grown := {pid for pid, parent in parents.items() if parent in family} - family:
        family |= grown
    return sum(ticks.get(pid, 0) for pid in family) / os.sysconf("SC_CLK_TCK")


def run_peers(
    names: Sequence[str], repeat: int, tell: Callable[[dict[str, Any]], None]
) -> dict[str, Any]:
    """Every job with every peer that is installed; `tell` hears of all results so far
    after each of them.
    """
    jobs = _jobs_for_peers(names)
    absent = [name for name in PEERS if not (home() / name / "bin" / "python").exists()]
    missing = {name: how_to_install(name) for name in absent}
    results: dict[str, Any] = {
        "at": now(),
        "env": environment(),
        "results": [],
        "failed": {},
        "missing": missing,
    }
    for job in jobs:
        for name in (name for name in PEERS if name not in missing):
            try:
                results["results"].append(beside(name, job, repeat))
            except UserError as error:
                results["failed"][f"{job.name} with {name}"] = error.message
            tell(results)
    return results


def _jobs_for_peers(names: Sequence[str]) -> list[BenchJob]:
    if not SCRIPTS.is_dir():
        fix = "run this from a checkout, installed with pip -e"
        raise UserError("the scripts of the peers are not here", fix)
    jobs = choose_jobs(list(names) or JOBS, large=False)
    for job in jobs:
        if job.name not in JOBS:
            fix = f"choose among {', '.join(JOBS)}"
            raise UserError(f"{job.name} is not written for peers", fix)
    return [replace(job, cohort=FEWER.get(job.name, job.cohort)) for job in jobs]


def beside(name: str, job: BenchJob, repeat: int) -> dict[str, Any]:
    """One job: a peer, our two engines of a CPU and the plain loop in turn."""
    ready = materials(job, "cpu")
    workers = Processes()
    with tempfile.TemporaryDirectory() as folder:
        peer = PeerProcess.start(name, job, repeat + 1, Path(folder) / "errors")
        try:
            ours = {engine.name: our_round(ready, engine) for engine in (Sequential(), workers)}
            rounds = {"plain loop": PlainLoop(ready).round, **ours, name: peer.round}
            sides = take_turns(rounds, repeat, torch.device("cpu"))
        finally:
            workers.close()  # first: forked workers hold the peer's input open
            peer.close()
    sides[name] = replace(sides[name], cpu_seconds=peer.cpu_seconds[1:])  # the first was to warm up
    about = {"hello": peer.hello, "noted": peer.noted, "load": os.getloadavg()[0]}
    return compare(job, name, sides) | about


def compare(job: BenchJob, peer: str, sides: dict[str, Contender]) -> dict[str, Any]:
    """Medians, and how many times as fast as the peer the others are."""
    theirs = sides[peer]
    their_cpu = _median(theirs.cpu_seconds)
    others = [side for who, side in sides.items() if who != peer]
    processor = {side.who: their_cpu / max(_median(side.cpu_seconds), 1e-9) for side in others}
    keep = ("seconds", "cpu_seconds", "median_seconds", "examples_per_second")
    return {
        "job": job.name,
        "about": job.about,
        "clients": job.clients,
        "cohort": job.cohort,
        "batch": job.batch,
        "peer": peer,
        "sides": {who: {key: getattr(side, key) for key in keep} for who, side in sides.items()},
        "times_peer": {side.who: theirs.median_seconds / side.median_seconds for side in others},
        "times_peer_in_cpu": processor,
    }
