"""A comparison as a grid of runs, one for each method and seed; what is finished stays,
what was stopped goes on.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import tomli_w
import torch

from fedblocks.config.catalogue import check_method_name
from fedblocks.config.model import Config
from fedblocks.config.options import Table
from fedblocks.config.presets import PRESETS, change
from fedblocks.config.sources import Source, parse_change, read_toml
from fedblocks.core.errors import RunFolderError, UserError
from fedblocks.core.folder_names import check_folder_name
from fedblocks.core.method import Method
from fedblocks.runs.build import prepare
from fedblocks.runs.grids.cells import complete, take_over
from fedblocks.runs.grids.lanes import Waiting, run_queue, worth_it
from fedblocks.runs.progress import OnNote, OnRound, warn_once
from fedblocks.runs.result import RunResult
from fedblocks.runs.run import RUNS
from fedblocks.runs.shelf import shared_data
from fedblocks.runs.storage.folder import CONFIG, OTHER_FOLDER, write_atomically
from fedblocks.runs.storage.record import Note

BASELINES = ("local", "fedavg", "fedavg_ft")  # always compared with, where they can be
WHOLE_NETS = ("fedavg", "fedavg_ft")  # of them those that average whole nets
PLAN = "compare.toml"  # in the folder of a comparison: all that decides its result
TRAINING = {one.name for one in fields(Method)} - {"net"}  # options that every method has


@dataclass(frozen=True)
class Grid:
    """What is compared: each of the methods, with each of the seeds, on one configuration."""

    base: Config
    methods: Mapping[str, Table]  # name -> its table in the configuration
    seeds: int
    asked: tuple[str, ...] = field(default=(), kw_only=True)  # what somebody named of them

    @property
    def cells(self) -> list[tuple[str, int]]:
        """Method and seed of each run; the methods of one seed stand together."""
        return [(name, self.base.seed + i) for i in range(self.seeds) for name in self.methods]

    def config(self, method: str, seed: int) -> Config:
        """The configuration of one run: all methods of a seed have the same data,
        cohorts and batch orders.
        """
        table = self.base.resolved()
        table["data"]["seed"] += seed - table["seed"]
        table |= {"seed": seed, "method": self.methods[method]}
        for group in table.get("groups", {}).values():
            own = _without_training(self.methods[method])
            group["method"] = {**_training(group["method"]), **own}
        return Config.of(table, Source(f"{self.base.source.name}, for {method}"))

    def plan(self) -> Table:
        """The comparison as a configuration that repeats it."""
        own = {
            name: {k: v for k, v in table.items() if k != "name"}
            for name, table in self.methods.items()
        }
        compare = {"methods": list(self.methods), "seeds": self.seeds, **own}
        return {**self.base.resolved(), "compare": compare}

    def key(self) -> str:
        """A short name for the base: the same one for more methods or more seeds."""
        text = json.dumps(self.base.resolved(), sort_keys=True)
        return sha256(text.encode()).hexdigest()[:8]


def read_grid(
    what: str | Path,
    methods: Sequence[str] | None = None,
    seeds: int | None = None,
    changes: Sequence[str] = (),
) -> Grid:
    """A comparison of methods on a preset or a TOML file; its table [compare] may say methods,
    seeds and options.

    Changes are `data.clients=10` for all runs or `ditto.strength=0.1` for one method. Options that
    all methods have (learning rate, epochs, ...) are those of the configuration, or of the method's
    own preset of the same family.
    """
    table, source = _table(str(what))
    said = _read_compare(table.pop("compare", {}), source)
    asked = list(methods) if methods is not None else said["methods"]
    names = [check_method_name(name) for name in dict.fromkeys([*BASELINES, *asked])]
    own, common = _sorted_changes(changes, names)
    base = change(table, source, common)
    parsed = [parse_change(text) for text in common]
    of_method = {path[1]: value for path, value in parsed if path[0] == "method" and path[1:]}
    everywhere = _training(of_method)
    tables = {
        name: {
            **_start(base, name, str(what)),
            **said["options"].get(name, {}),
            **everywhere,
            **own.get(name, {}),
        }
        for name in names
    }
    number = seeds if seeds is not None else said["seeds"]
    return _check(Grid(base, tables, number, asked=tuple(asked)))


def play_grid(
    grid: Grid,
    out: Path | None = None,
    on_run: Callable[[str, int, int], tuple[OnRound, OnNote]] | None = None,
) -> dict[str, dict[int, RunResult]]:
    """Do the runs that are not done yet; `on_run` is told method, seed and number, and
    says whom to tell of rounds; without it, warnings become Python's.
    """
    with shared_data():
        return _play(grid, out, on_run)


def _play(
    grid: Grid, out: Path | None, on_run: Callable[[str, int, int], tuple[OnRound, OnNote]] | None
) -> dict[str, dict[int, RunResult]]:
    data = check_folder_name(grid.base.data.name, "a data set")
    folder = out if out is not None else RUNS / f"compare-{data}-{grid.key()}"
    grid, notes = _that_fit(grid, folder)
    cells = {cell: (cell_folder(folder, *cell), grid.config(*cell)) for cell in grid.cells}
    finished = take_over(cells)
    _begin(folder, grid)
    results: dict[str, dict[int, RunResult]] = {name: {} for name in grid.methods}
    tell = warn_once()
    for number, ((method, seed), cell) in enumerate(cells.items(), 1):
        listeners = on_run(method, seed, number) if on_run is not None else (None, tell)
        for note in notes if number == 1 else []:
            listeners[1](note)
        _lanes(folder, grid, method, *listeners)
        result = finished.get((method, seed))
        results[method][seed] = complete(*cell, *listeners) if result is None else result
    return results


def _that_fit(grid: Grid, folder: Path) -> tuple[Grid, list[Note]]:
    """The grid without references that cannot be: groups of unlike nets have no average. What else
    does not fit is an error before hours were spent on others.
    """
    tables, notes = dict(grid.methods), list[Note]()
    for name in grid.methods:
        if (cell_folder(folder, name, grid.base.seed) / CONFIG).exists():
            continue
        try:
            prepare(grid.config(name, grid.base.seed))
        except UserError as error:
            if name in grid.asked or name not in WHOLE_NETS or not grid.base.groups:
                raise
            del tables[name]
            text = f"{name} is left out, because these clients cannot train it: {error.message}"
            notes.append(Note(text, "warning"))
    return replace(grid, methods=tables), notes


def _lanes(
    folder: Path, grid: Grid, method: str, on_round: OnRound | None, on_note: OnNote | None
) -> None:
    """The runs of a method that nobody has begun, all at once: on a GPU, or where stacks of clients
    are asked for. Otherwise lanes were no faster on a CPU.
    """
    configs = {
        cell_folder(folder, m, seed): grid.config(m, seed) for m, seed in grid.cells if m == method
    }
    new = {path: config for path, config in configs.items() if not (path / CONFIG).exists()}
    stacked = all(config.engine == "vectorised" for config in new.values())
    if len(new) < 2 or not (stacked or torch.cuda.is_available()):
        return
    prepared = [prepare(config) for config in new.values()]
    if worth_it(prepared):
        runs = zip(prepared, new, strict=True)
        run_queue([Waiting(own, path) for own, path in runs], on_round, on_note)


def read_cells(folder: Path) -> list[tuple[str, int]]:
    """Method and seed of each run of a comparison, as its folder records them; what
    they name need not be known.
    """
    table, _ = read_toml(folder / PLAN)
    asked = table["compare"]
    return [(n, table["seed"] + i) for i in range(asked["seeds"]) for n in asked["methods"]]


def cell_folder(folder: Path, method: str, seed: int) -> Path:
    """Where one run of a comparison is."""
    return folder / "runs" / f"{check_folder_name(method, 'a method')}-{seed}"


def _begin(folder: Path, grid: Grid) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()) and not (folder / PLAN).exists():
            raise RunFolderError(f"{folder} is not empty and not a comparison", OTHER_FOLDER)
        write_atomically(folder / PLAN, tomli_w.dumps(grid.plan()))
    except OSError as error:
        raise RunFolderError(
            f"cannot write {folder}: {error.strerror or error}", "choose another folder"
        ) from error


def _table(what: str) -> tuple[Table, Source]:
    if what in PRESETS:
        return PRESETS[what]().resolved(), Source(f"preset {what}")
    if Path(what).suffix == ".toml" or Path(what).is_file():
        return read_toml(Path(what))
    fix = f"name a TOML file or one of {', '.join(sorted(PRESETS))}"
    raise UserError(f'there is no preset or file "{what}"', fix)


def _read_compare(table: Any, source: Source) -> dict[str, Any]:
    """What the table [compare] says: methods, seeds, and a table of options for some methods."""
    place = f"{source.place(('compare',))}: compare"
    if not isinstance(table, dict):
        raise UserError(
            f"{place} is not a table", "write [compare] with methods, seeds, and [compare.METHOD]"
        )
    methods = table.get("methods", [])
    seeds = table.get("seeds", 6)
    if not isinstance(methods, list) or not all(isinstance(name, str) for name in methods):
        raise UserError(
            f"{place}.methods is not a list of names", 'write methods = ["ditto", "pfedmb"]'
        )
    if not isinstance(seeds, int):
        raise UserError(f"{place}.seeds is not a whole number", "write seeds = 6")
    options = {k: v for k, v in table.items() if k not in ("methods", "seeds")}
    for name, own in options.items():
        check_method_name(name)
        if not isinstance(own, dict):
            raise UserError(
                f"{place}.{name} is not a table", f"write [compare.{name}] and its options below it"
            )
    return {"methods": methods, "seeds": seeds, "options": options}


def _sorted_changes(
    changes: Sequence[str], names: Sequence[str]
) -> tuple[dict[str, Table], list[str]]:
    """Changes that begin with the name of a method, and all others."""
    own: dict[str, Table] = {}
    common: list[str] = []
    for text in changes:
        path, value = parse_change(text)
        if path[0] in names and len(path) == 2:
            own.setdefault(path[0], {})[path[1]] = value
        else:
            common.append(text)
    return own, common


def _start(base: Config, name: str, what: str) -> Table:
    """A method's options before anybody changes them for this comparison."""
    if name == base.method.name:
        return base.method.table
    family = what.rpartition("-")[0]
    if what in PRESETS and f"{family}-{name}" in PRESETS:
        return PRESETS[f"{family}-{name}"]().method.table
    return {"name": name, **_training(base.method.table)}


def _training(table: Table) -> Table:
    return {k: v for k, v in table.items() if k in TRAINING}


def _without_training(table: Table) -> Table:
    return {k: v for k, v in table.items() if k not in TRAINING}


def _check(grid: Grid) -> Grid:
    """The grid, if every run of it could start as far as the configuration shows."""
    if grid.seeds < 1:
        raise UserError(
            f"{grid.seeds} seeds: nothing to run", "use at least 1, and 6 for a verdict"
        )
    if "test" not in grid.base.evaluation.parts:
        place = grid.base.source.place(("evaluation", "parts"))
        raise UserError(
            f"{place}: evaluation.parts: methods are compared on test data",
            'add "test" to the parts',
        )
    tables = dict(_complete_tables(grid))
    return replace(grid, methods=tables)


def _complete_tables(grid: Grid) -> Iterator[tuple[str, Table]]:
    for name in grid.methods:
        yield name, grid.config(name, grid.base.seed).method.table
