"""The configuration of a run: everything that decides its result, checked before
anything starts.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, ValidationError, model_validator

from fedblocks.config.choices import completed, method_problems
from fedblocks.config.explain import problems_of
from fedblocks.config.options import Table
from fedblocks.config.problems import ConfigError, Path, Problem
from fedblocks.config.registry import PYTHON, SAVED
from fedblocks.config.sources import Source

if TYPE_CHECKING:
    from fedblocks.config.code.ingredients import Ingredients

EvaluatedPart = Literal["train", "validation", "test"]
SPLIT = (0.7, 0.1, 0.2)
ALL = "all"  # the group of the clients that belong to no other


class Section(BaseModel):
    """A table whose fields are known; anything else in it is a mistake."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class Choice(BaseModel):
    """A table that names something and gives its options, e.g. {name = "pfedmb", branches = 4}."""

    model_config = ConfigDict(extra="allow", frozen=True)

    name: str

    @property
    def table(self) -> Table:
        """Name and options as plain values."""
        return self.model_dump(mode="json")


class DataSection(Section):
    """Which examples there are, and who holds them."""

    name: str = Field(description="a data set; `fedblocks data list` shows all")
    options: dict[str, Any] = Field(default={}, description="options of the data set")
    clients: int | None = Field(default=None, ge=1, description="how many clients, at least 1")
    partition: Choice | None = Field(
        default=None, description='how rows are divided, e.g. {name = "iid"}'
    )
    testbed: Choice | None = Field(
        default=None,
        description="a published federation instead of a partition, e.g. {name = "
        '"pfedmb_two_classes"}',
    )
    shift: Choice | None = Field(
        default=None, description='a shift between clients, e.g. {name = "joint", groups = 4}'
    )
    split: tuple[float, float, float] = Field(
        default=SPLIT,
        description="shares of a client's rows for training, validation and test, adding up to 1",
    )
    stratified: bool = Field(
        default=False, description="whether all parts of a client keep its label proportions"
    )
    seed: int = Field(default=0, ge=0, description="seed of partition, split and shift, at least 0")
    unseen: float = Field(
        default=0.0,
        ge=0,
        lt=1,
        description="share of clients never trained on, at least 0 and below 1",
    )

    @model_validator(mode="after")
    def _fits_together(self) -> DataSection:
        if self.testbed is not None:
            return self._fits_testbed()
        if (
            self.clients is None
            and self.name not in (SAVED, PYTHON)
            and self.partition_name != "by_user"
        ):
            raise ValueError("clients: say how many clients there are")
        if min(self.split) < 0 or abs(sum(self.split) - 1) > 1e-6 or self.split[0] == 0:
            raise ValueError(
                f"split: {list(self.split)} does not add up to 1 with a training share above 0"
            )
        return self

    def _fits_testbed(self) -> DataSection:
        """A test-bed says itself how many clients there are and who holds which rows of
        which part.
        """
        choices = {
            "clients": self.clients is not None,
            "partition": self.partition is not None,
            "split": self.split != SPLIT,
            "stratified": self.stratified,
        }
        for name, said in choices.items():
            if said:
                raise ValueError(
                    f"{name}: the test-bed decides it; leave it out, or leave out data.testbed"
                )
        if self.name == SAVED:
            raise ValueError("testbed: a saved federation is divided already; leave it out")
        return self

    @property
    def partition_name(self) -> str | None:
        """How rows are divided; None if a test-bed does it."""
        return None if self.partition is None else self.partition.name


class CohortSection(Section):
    """Who takes part in a round."""

    size: int | float = Field(
        default=1.0, description="clients a round: a number (10), or a share (0.5; 1.0 is all)"
    )

    @model_validator(mode="after")
    def _in_range(self) -> CohortSection:
        if self.size <= 0 or (isinstance(self.size, float) and self.size > 1):
            raise ValueError(
                f"size: {self.size} is neither a number of clients nor a share in 0..1"
            )
        return self


class EvaluationSection(Section):
    """When models are tried, and on what."""

    every: int = Field(default=1, ge=1, description="rounds between evaluations, at least 1")
    parts: tuple[EvaluatedPart, ...] = Field(
        default=("validation", "test"),
        min_length=1,
        description="parts of the data: train, validation, test",
    )
    local: bool = Field(
        default=False, description="whether to try the models right after local training, too"
    )


class CheckpointSection(Section):
    """What is kept to go on from after a kill."""

    every: int | None = Field(
        default=None, ge=1, description="rounds between checkpoints, at least 1"
    )
    keep: int = Field(
        default=2, ge=2, description="checkpoints to keep, at least 2: one may be damaged"
    )


class GroupSection(Section):
    """Clients that differ from the others in net or method."""

    clients: tuple[int, ...] = Field(default=(), description="client numbers")
    tag: str | None = Field(
        default=None, description="a tag of the data, with `value`, instead of client numbers"
    )
    value: int | None = Field(default=None, description="the value of the tag")
    net: Choice
    method: Choice

    @model_validator(mode="after")
    def _says_who(self) -> GroupSection:
        if bool(self.clients) == (self.tag is not None) or (self.tag is None) != (
            self.value is None
        ):
            raise ValueError("clients: give client numbers, or a tag and its value")
        return self


class Config(Section):
    """Everything that decides the result of a run."""

    seed: int = Field(
        default=0, ge=0, description="seed of initial models, cohorts and batches, at least 0"
    )
    rounds: int = Field(ge=1, description="rounds of training, at least 1")
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
        description="worker processes, at least 1; default: a process for each thread",
    )
    memory: str | None = Field(
        default=None, description='memory for clients that are trained at once, e.g. "8GiB"'
    )
    threads: int | None = Field(
        default=None, ge=1, description="CPU threads, at least 1; default: torch's own choice"
    )
    precision: Literal["float32", "tf32"] = Field(
        default="float32",
        description="of products on a GPU: float32, or tf32 (faster, 10 bits of mantissa)",
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
    cohort: CohortSection = CohortSection()
    evaluation: EvaluationSection = EvaluationSection()
    checkpoint: CheckpointSection = CheckpointSection()
    groups: dict[str, GroupSection] = Field(
        default={}, description="groups of clients with another net or other options"
    )

    _source: Source = PrivateAttr(default_factory=Source)
    _ingredients: Ingredients | None = PrivateAttr(default=None)

    @staticmethod
    def of(table: Table, source: Source | None = None) -> Config:
        """A checked configuration with no default left open, or ConfigError with
        everything that is wrong.
        """
        if _is_of_objects(table):
            return Config.stored(table, source)
        problems = list[Problem]()
        full = completed(table, problems)
        problems += _method_problems(full, problems)
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
            table["data"] = {
                k: v for k, v in table["data"].items() if k not in ("split", "stratified")
            }
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
    if problems:
        raise ConfigError(problems, source)
    config._source = source
    return config


def _with_defaults(table: Table) -> Table:
    """A short run is stored after every round, a long one about a hundred times."""
    rounds, checkpoint = table.get("rounds"), table.get("checkpoint", {})
    if isinstance(rounds, int) and isinstance(checkpoint, dict) and "every" not in checkpoint:
        return {**table, "checkpoint": {**checkpoint, "every": max(1, rounds // 100)}}
    return table


def _method_problems(table: Table, reported: list[Problem]) -> list[Problem]:
    """What the methods say of themselves, unless something else is wrong with them."""
    groups = table.get("groups")
    tables: dict[Path, Any] = {("method",): table["method"]}
    if isinstance(groups, dict):
        tables |= {
            ("groups", name, "method"): g.get("method")
            for name, g in groups.items()
            if isinstance(g, dict)
        }
    sound = {
        path: t
        for path, t in tables.items()
        if not any(p.path[: len(path)] == path for p in reported)
    }
    allow = table.get("allow_degenerate") is True
    return [
        p
        for path, one in sound.items()
        if isinstance(one, dict)
        for p in method_problems(one, path, allow)
    ]
