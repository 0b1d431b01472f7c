"""What a report tells, read from the folders of runs."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedblocks.config.choices import make
from fedblocks.config.model import ALL, Config
from fedblocks.config.sections import GroupSection
from fedblocks.core.errors import RunFolderError, UserError
from fedblocks.core.method import Method
from fedblocks.core.parts import OPTIMIZER
from fedblocks.data import Federation
from fedblocks.runs.clients import clients_from
from fedblocks.runs.curves import curves_of
from fedblocks.runs.experiment import net_of
from fedblocks.runs.federations import federation_of
from fedblocks.runs.grids.grid import PLAN, cell_folder, read_cells
from fedblocks.runs.result import RunResult, load_run
from fedblocks.runs.same_data import check_same_data
from fedblocks.runs.storage.folder import CONFIG, STORE, RunFolder
from fedblocks.runs.storage.record import Part
from fedblocks.runs.storage.store import RunStore
from fedblocks.runs.timing import warm_seconds

Numbers = dict[str, dict[int, dict[int, list[float]]]]  # name -> round -> client -> numbers
REFUSALS = "SELECT round, client, reason, detail FROM refusals ORDER BY round, client"
TRAFFIC = (
    "SELECT block, SUM(bytes * (direction = 'down')) AS down, "
    "SUM(bytes * (direction = 'up')) AS up FROM traffic GROUP BY block ORDER BY block"
)


class Point(NamedTuple):
    """One evaluation, and what it had taken until then."""

    round: int
    score: float  # mean of the main metric over clients
    loss: float | None
    megabytes: float
    seconds: float


@dataclass(frozen=True, eq=False)
class Facts:
    """One run."""

    result: RunResult
    environment: dict[str, Any]
    partition: str  # SHA-256 of the federation
    part: Part  # of the data, that scores are of
    curve: list[Point]
    scores: dict[int, float]  # client -> its main metric in the last evaluation
    refusals: list[dict[str, Any]]
    traffic: list[dict[str, Any]]  # bytes of each block, down and up
    names: dict[int, str]  # client -> its name, where the record has it

    def numbers(self) -> Numbers:
        """Small private blocks, and portraits of models, in every evaluated round:
        branch weights, gates, ...
        """
        by_name: Numbers = {}
        with RunFolder.open(self.result.folder) as folder:
            rows = folder.store.rows(
                "SELECT round, name, client, numbers FROM snapshots ORDER BY name, round, client"
            )
        for row in rows:
            if not row["name"].startswith(OPTIMIZER):
                by_round = by_name.setdefault(row["name"], {})
                by_round.setdefault(row["round"], {})[row["client"]] = json.loads(row["numbers"])
        return by_name


@dataclass(frozen=True, eq=False)
class Story:
    """Everything that a report shows."""

    folder: Path
    # method (or folder, where a method has two runs of a seed) -> seed -> run
    runs: Mapping[str, Mapping[int, Facts]]
    # what could not be read, what is not finished
    problems: list[str] = field(default_factory=list)
    is_comparison: bool = False
    data: Federation | None = None  # of this very partition, if they were made before

    @property
    def results(self) -> dict[str, dict[int, RunResult]]:
        """The runs without what only a report needs."""
        return {
            name: {seed: run.result for seed, run in by.items()} for name, by in self.runs.items()
        }

    @property
    def firsts(self) -> dict[str, Facts]:
        """The first run of every method: pictures of single clients are of these."""
        return {name: by[min(by)] for name, by in self.runs.items()}

    @property
    def first(self) -> Facts:
        """The run whose data pictures of clients show."""
        return min(self.firsts.values(), key=lambda run: run.result.config.seed)

    @cached_property
    def federation(self) -> Federation | None:
        """The data of the first seed, if they can still be made and are the same as then."""
        first = self.first
        if self.data is not None:
            return self.data
        try:
            rebuilt = federation_of(first.result.config)
        except UserError:
            return None
        unused = not first.partition and not first.curve  # a run that has not recorded its data yet
        return rebuilt if unused or first.partition == rebuilt.hash() else None

    def data_of(self, run: Facts) -> Federation | None:
        """The data of a run, where they are those of the first seed and can still be made."""
        return self.federation if run.partition == self.first.partition else None

    def methods(self, name: str) -> dict[str, Method]:
        """A method as it was run, by group of clients; none if the data are no longer there."""
        if self.federation is None:
            return {}
        try:
            return _methods(self.firsts[name].result.config, self.federation)
        except UserError:
            return {}


def gather(path: Path, before: Story | None = None) -> Story:
    """The story of a run, of a comparison, or of a folder of runs; `before` is what was
    told of it earlier.
    """
    story = _read_story(path)
    same = before is not None and before.first.partition == story.first.partition != ""
    return replace(story, data=before.federation) if before is not None and same else story


def _read_story(path: Path) -> Story:
    if path.is_dir() and {CONFIG, STORE} <= {entry.name for entry in path.iterdir()}:
        return _story(path, [path], [])
    if (path / PLAN).is_file():
        wanted = [cell_folder(path, *cell) for cell in read_cells(path)]
        there = [folder for folder in wanted if (folder / CONFIG).is_file()]
        if not there:
            raise RunFolderError(
                f"no run of the comparison {path} has begun", "start it, then ask for the report"
            )
        missing = len(wanted) - len(there)
        problems = [f"{missing} of {len(wanted)} runs have not begun"] if missing else []
        return _story(path, there, problems, is_comparison=True)
    begun = [file.parent for file in path.glob(f"*/{CONFIG}")]
    children = sorted(folder for folder in begun if (folder / STORE).is_file())
    if not children:
        RunFolder.open(path).close()  # says what is wrong with the folder
    return _story(path, children, [])


def _story(
    path: Path, folders: list[Path], problems: list[str], is_comparison: bool = False
) -> Story:
    facts: list[Facts] = []
    for folder in folders:
        try:
            facts.append(_read_facts(folder))
        except UserError as error:
            if len(folders) == 1:
                raise
            problems.append(error.message)
    if not facts:
        message = f"none of the {len(folders)} runs in {path} can be read: {problems[0]}"
        raise RunFolderError(message, "start them anew")
    check_same_data([one.result for one in facts])
    problems += [_unfinished(one.result) for one in facts if one.result.status != "finished"]
    return Story(path, _by_method(facts, is_comparison), problems, is_comparison)


def _unfinished(run: RunResult) -> str:
    return (
        f"{run.folder.name} is {run.status}: {run.rounds} of {run.config.rounds} rounds are "
        f"on record"
    )


def _by_method(facts: Iterable[Facts], is_comparison: bool) -> dict[str, dict[int, Facts]]:
    """Runs by method and seed; a comparison has its own names, which its folders bear."""
    runs = list(facts)
    if is_comparison:
        names = [one.result.folder.name.rpartition("-")[0] for one in runs]
    else:
        times = Counter((one.result.config.method.name, one.result.config.seed) for one in runs)
        is_clear = max(times.values()) == 1
        names = [
            one.result.config.method.name if is_clear else one.result.folder.name for one in runs
        ]
    by_method: dict[str, dict[int, Facts]] = {}
    for name, one in zip(names, runs, strict=True):
        by_method.setdefault(name, {})[one.result.config.seed] = one
    return by_method


def _read_facts(path: Path) -> Facts:
    result = load_run(path)
    parts = result.config.evaluation.parts
    part: Part = "test" if "test" in parts else parts[0]
    with RunFolder.open(path) as folder:
        store = folder.store
        known = store.meta("clients")
        last = store.rows("SELECT MAX(round) AS round FROM means WHERE part = ?", part)[0]["round"]
        return Facts(
            result=result,
            environment=folder.environment,
            partition=store.meta("federation") or "",
            part=part,
            curve=_curve(store, part),
            scores=store.scores(last, part, "personal") if last is not None else {},
            refusals=store.rows(REFUSALS),
            traffic=store.rows(TRAFFIC),
            names={client: one["name"] for client, one in clients_from(known).items()},
        )


def _curve(store: RunStore, part: Part) -> list[Point]:
    rounds = store.rows("SELECT round, bytes_down + bytes_up AS bytes FROM rounds ORDER BY round")
    megabytes = accumulate(row["bytes"] / 1e6 for row in rounds)
    seconds = accumulate(warm_seconds(store).values())
    until = dict(zip((row["round"] for row in rounds), zip(megabytes, seconds)))
    query = "SELECT round, accuracy FROM means WHERE part = ? AND view = 'personal' ORDER BY round"
    means = store.rows(query, part)
    losses = {row["round"]: row.get(part) for row in curves_of(store, "loss")}
    return [
        Point(row["round"], row["accuracy"], losses.get(row["round"]), *until[row["round"]])
        for row in means
    ]


def _methods(config: Config, federation: Federation) -> dict[str, Method]:
    tables = {name: (group.net, group.method) for name, group in config.groups.items()}
    grouped = sum(
        len(group.clients) or _count_tagged(federation, group) for group in config.groups.values()
    )
    if grouped < federation.clients:
        tables = {ALL: (config.net, config.method), **tables}
    return {
        name: make("method", method.table, net=net_of(net, federation))
        for name, (net, method) in tables.items()
    }


def _count_tagged(federation: Federation, group: GroupSection) -> int:
    """How many clients a group has that is chosen by a tag."""
    return int((federation.tags.get(group.tag or "", np.zeros(0)) == group.value).sum())
