"""Who takes part: a method, by its name and, if it is not ours, by its source."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from fedblocks.config.catalogue import check_method_name
from fedblocks.config.registry import Methods
from fedblocks.core.errors import UserError
from fedblocks.core.method import Method
from fedblocks.recipes.recipe import Cell, Recipe
from fedblocks.recipes.suite.beds import BEDS, VERSION, SuiteBed
from fedblocks.recipes.suite.manifest import manifest_hash
from fedblocks.recipes.suite.own_code import own_files
from fedblocks.recipes.suite.spaces import is_ours, settings_of

TUNED = ", tuned"  # after a method's name: its options were chosen on validation data
HELD_OUT = 1000  # first seed of the held-out variants
TUNING = 5000  # the seed by which options are chosen; no report has it


@dataclass(frozen=True)
class Entrant:
    """A method that is put to the test."""

    name: str
    source: str = ""  # hash of its source, if it is not ours: another source is another entrant

    @staticmethod
    def named(name: str, code: Sequence[str] = ()) -> Entrant:
        """A method by its name, or the nearest names."""
        check_method_name(name)
        kind = Methods()[name]
        return Entrant(name, "" if is_ours(kind) else source_hash(kind, code))

    @property
    def title(self) -> str:
        """In the names of files: the method, and which source it is."""
        return f"{self.name}-{self.source}" if self.source else self.name


def source_hash(kind: type[Method], code: Sequence[str]) -> str:
    """Of the file that defines a method, of those that were named with --code, and of what they
    import.
    """
    own = inspect.getsourcefile(kind)
    files = own_files(Path(file) for file in (*([own] if own else []), *code))
    whole = sha256()
    for file in sorted(files):
        whole.update(file.read_bytes() if file.is_file() else file.name.encode())
    return whole.hexdigest()[:8]


def recipe_of(
    entrant: Entrant, held_out: bool = False, beds: Mapping[str, SuiteBed] = BEDS
) -> Recipe:
    """All that the suite asks of a method: on every bed a row with defaults and a tuned one."""
    variant = "heldout-" if held_out else ""
    rows = [
        cell
        for bed in beds.values()
        for cell in (default_cell(entrant, bed, held_out), tuned_cell(entrant, bed, held_out))
    ]
    return Recipe(
        f"suite-{VERSION}-{variant}{entrant.title}",
        f"{entrant.name} on the beds of the suite" + (", held-out variants" if held_out else ""),
        f"suite {VERSION}, manifest {manifest_hash(beds)}",
        "suite",
        tuple(rows),
    )


def suite_recipe(name: str) -> Recipe:
    """The recipe behind the name of a results file, e.g. suite-1-heldout-fedavg."""
    words = name.removeprefix(f"suite-{VERSION}-")
    title = words.removeprefix("heldout-")
    method, _, source = title.rpartition("-")
    entrant = Entrant(method, source) if method else Entrant(title)
    if source and method and method not in Methods():
        message = f'{name} has results of "{method}", which is not a method of the library'
        raise UserError(message, "name the file that defines it, too: --code FILE")
    check_method_name(entrant.name)
    return recipe_of(entrant, held_out=title != words)


def default_cell(entrant: Entrant, bed: SuiteBed, held_out: bool) -> Cell:
    """A method with its defaults."""
    first = HELD_OUT if held_out else 0
    config = bed.config(entrant.name)
    seeded = {**config, "seed": first, "data": {**config["data"], "seed": first}}
    view = {} if bed.view == "personal" else {"view": bed.view}
    return Cell(f"{bed.name}/{entrant.name}", seeded, {"name": "client_counts", **view})


def tuned_cell(entrant: Entrant, bed: SuiteBed, held_out: bool) -> Cell:
    """The same with options that were chosen on the validation data of a seed of its own."""
    default = default_cell(entrant, bed, held_out)
    settings = settings_of(entrant.name, Methods()[entrant.name], bed.rate(entrant.name))
    return Cell(
        default.key + TUNED,
        default.config,
        default.measure,
        settings=settings,
        tuning={"seed": TUNING, "data": {"seed": TUNING}},
    )
