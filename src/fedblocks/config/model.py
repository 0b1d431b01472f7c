"""The configuration of a run: everything that decides its result, checked before
anything starts.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field, PrivateAttr, ValidationError, model_validator

from fedblocks.config.choices import fill_in_defaults, method_problems, task_problems
from fedblocks.config.explain import problems_of
from fedblocks.config.options import Table
from fedblocks.config.problems import ConfigError, Path, Problem
from fedblocks.config.registry import PYTHON
from fedblocks.config.sections import (
    CheckpointSection,
    Choice,
    CohortSection,
    DataSection,
    EvaluationSection,
    FaultsSection,
    GroupSection,
    Section,
    StoppingSection,
    TaskSection,
)
from fedblocks.config.sources import Source
from fedblocks.config.toml import LARGEST
from fedblocks.core.option_types import show

if TYPE_CHECKING:
    from fedblocks.config.code.ingredients import Ingredients

MOST_PROCESSES = 256
MOST_THREADS = 1024
ALL = "all"  # the group of the clients that belong to no other
ONE_GROUP = "leave it out of one of them: a client has one net and one method"


class Config(Section):
    """Everything that decides the result of a run."""

    seed: int = Field(
        default=0, ge=0, description="seed of initial models, cohorts and batches, at least 0"
    )
    rounds: int = Field(ge=1, description="rounds of training, at least 1")
    schedule_rounds: int | None = Field(
        default=None,
        ge=1,
        description="rounds that schedules over the run go over; default: all. Set by an extension",
    )
    device: str = Field(
        default="auto",
        pattern=r"^(auto|cpu|cuda(:[0-9]+)?)$",
        description="auto, cpu, cuda, or one of several GPUs by its number: cuda:1",
    )
    engine: Literal["auto", "sequential", "vectorised", "processes"] = Field(
        default="auto", description="auto, sequential, vectorised or processes"
    )
    processes: int | None = Field(
        default=None,
        ge=1,
        le=MOST_PROCESSES,
        description=f"worker processes, 1 to {MOST_PROCESSES}; default: a process for each thread",
    )
    memory: str | None = Field(
        default=None, description='memory for clients that are trained at once, e.g. "8GiB"'
    )
    threads: int | None = Field(
        default=None,
        ge=1,
        le=MOST_THREADS,
        description=f"CPU threads, 1 to {MOST_THREADS}; default: torch's own choice",
    )
    precision: Literal["float32", "tf32", "bf16"] = Field(
        default="float32",
        description="float32, tf32 (products on a GPU), or bf16 (products in training, 8 bits)",
    )
    chunk: int = Field(
        default=64,
        ge=1,
        description="clients that the vectorised engine trains at once, at least 1",
    )
    allow_degenerate: bool = Field(
        default=False, description="allow settings that make a method another one"
    )
    data: DataSection
    net: Choice
    method: Choice
    task: TaskSection | None = Field(
        default=None, description="what is learned; default: as the data say, one class an example"
    )
    cohort: CohortSection = CohortSection()
    evaluation: EvaluationSection = EvaluationSection()
    checkpoint: CheckpointSection = CheckpointSection()
    stopping: StoppingSection | None = Field(
        default=None, description="early stopping; default: all rounds are played"
    )
    faults: FaultsSection | None = Field(
        default=None, description="faults on purpose: clients that drop out, crash, ..."
    )
    groups: dict[str, GroupSection] = Field(
        default={}, description="groups of clients with another net or other options"
    )

    _source: Source = PrivateAttr(default_factory=Source)
    _ingredients: Ingredients | None = PrivateAttr(default=None)

    @model_validator(mode="after")
    def _can_be_stopped(self) -> Config:
        if self.stopping is not None and self.stopping.part not in self.evaluation.parts:
            raise ValueError(
                f"stopping: {self.stopping.part} is not among evaluation.parts; add it there"
            )
        return self

    @property
    def horizon(self) -> int:
        """The rounds that schedules over the run's own rounds go over."""
        return self.schedule_rounds or self.rounds

    @staticmethod
    def of(table: Table, source: Source | None = None) -> Config:
        """A checked configuration with no default left open, or ConfigError with
        everything that is wrong.
        """
        if _is_of_objects(table):
            return Config.stored(table, source)
        problems = list[Problem]()
        full = fill_in_defaults(table, problems)
        problems += [*_method_problems(full, problems), *task_problems(full.get("task"))]
        problems += _group_problems(full.get("groups"))
        return _validate(full, source or Source(), problems)

    @staticmethod
    def stored(table: Table, source: Source | None = None) -> Config:
        """A configuration that is complete already; what it names need not be known here."""
        return _validate(table, source or Source(), [])

    def of_objects(self, ingredients: Ingredients) -> Config:
        """The same configuration, made of these Python objects."""
        config = self.model_copy()
        config._ingredients = ingredients
        return config

    @property
    def ingredients(self) -> Ingredients | None:
        """Methods and data that were handed over as objects; none: everything has a name."""
        return self._ingredients

    @property
    def is_of_objects(self) -> bool:
        """Whether names do not suffice to make it again."""
        return self.data.name == PYTHON

    @property
    def source(self) -> Source:
        """Where it was written."""
        return self._source

    def resolved(self) -> Table:
        """All values, as they are written to config.toml; reading them gives the same
        configuration.
        """
        table = self.model_dump(mode="json", exclude_none=True)
        if self.is_of_objects:  # divided already: these decided nothing
            unused = ("split", "stratified")
            table["data"] = {k: v for k, v in table["data"].items() if k not in unused}
        return table

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Config) and self.resolved() == other.resolved()

    __hash__ = None  # type: ignore[assignment]


def _is_of_objects(table: Table) -> bool:
    data = table.get("data")
    return isinstance(data, dict) and data.get("name") == PYTHON


def _validate(table: Table, source: Source, problems: list[Problem]) -> Config:
    try:
        config = Config.model_validate_json(
            json.dumps(_with_defaults(table), default=str), strict=True
        )
    except ValidationError as error:
        problems = problems + problems_of(error, {problem.path for problem in problems}, Config)
    problems = problems + list(_number_problems(table, ()))
    if problems:
        raise ConfigError(problems, source)
    config._source = source
    return config


def _number_problems(value: Any, path: Path) -> Iterator[Problem]:
    """Whole numbers that a stored configuration could not be read back with."""
    if isinstance(value, int) and abs(value) >= LARGEST:
        yield Problem(path, f"{value} has more than 63 bits", "write a number below 2**63")
    for key, child in value.items() if isinstance(value, dict) else ():
        yield from _number_problems(child, (*path, str(key)))
    for child in value if isinstance(value, list | tuple) else ():
        yield from _number_problems(child, path)


def _with_defaults(table: Table) -> Table:
    """A short run is stored after every round, a long one about a hundred times."""
    rounds = table.get("rounds")
    checkpoint = table.get("checkpoint", {})
    if isinstance(rounds, int) and isinstance(checkpoint, dict) and "every" not in checkpoint:
        return {**table, "checkpoint": {**checkpoint, "every": max(1, rounds // 100)}}
    return table


def _method_problems(table: Table, reported: list[Problem]) -> list[Problem]:
    """What the methods say of themselves, unless something else is wrong with them."""
    tables: dict[Path, Any] = {("method",): table["method"]}
    groups = table.get("groups")
    for name, group in groups.items() if isinstance(groups, dict) else ():
        if isinstance(group, dict):
            tables[("groups", name, "method")] = group.get("method")
    allow = table.get("allow_degenerate") is True
    problems: list[Problem] = []
    for path, method in tables.items():
        is_sound = not any(problem.path[: len(path)] == path for problem in reported)
        if is_sound and isinstance(method, dict):
            problems += method_problems(method, path, allow)
    return problems


def _group_problems(groups: Any) -> list[Problem]:
    """Clients that are listed in two groups; those of a tag are known with the data."""
    problems: list[Problem] = []
    first: dict[int | str, str] = {}  # the group that lists a client
    for name, group in groups.items() if isinstance(groups, dict) else ():
        clients = group.get("clients") if isinstance(group, dict) else ()
        for client in clients if isinstance(clients, list | tuple) else ():
            if isinstance(client, int | str) and first.setdefault(client, name) != name:
                message = f'client {show(client)} is in the group "{first[client]}", too'
                problems.append(Problem(("groups", name, "clients"), message, ONE_GROUP))
                break
    return problems
