"""The tables of a configuration: their fields, what each may hold, what fits together."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from fedblocks.config.options import Table
from fedblocks.config.registry import PYTHON, SAVED

EvaluatedPart = Literal["train", "validation", "test"]
SPLIT = (0.7, 0.1, 0.2)


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
        description="a published federation instead of a partition, "
        'e.g. {name = "pfedmb_two_classes"}',
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
        divided = self.name in (SAVED, PYTHON) or self.partition_name == "by_user"
        if self.clients is None and not divided:
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


class TaskSection(Section):
    """What is learned, where the data do not say it or say something else."""

    kind: str = Field(
        default="classification",
        description="classification, sequence-labelling, next-token, multi-label or regression",
    )
    loss: str | None = Field(
        default=None,
        description="cross_entropy; binary_cross_entropy; squared, absolute or huber; "
        "or a name in LOSSES. Default: the first of the kind",
    )
    metrics: tuple[str, ...] = Field(
        default=(), description="names of metrics, the main one first; default: those of the kind"
    )
    class_weights: tuple[float, ...] = Field(
        default=(), description="of each class in the cross-entropy; default: 1"
    )
    label_smoothing: float = Field(
        default=0.0, ge=0, lt=1, description="share of a label that goes to all classes alike"
    )

    @property
    def table(self) -> Table:
        """What `Task` is made of."""
        return {**self.model_dump(mode="json", exclude_none=True)}


class CohortSection(Section):
    """Who takes part in a round."""

    size: int | float = Field(
        default=1.0, description="clients a round: a number (10), or a share (0.5; 1.0 is all)"
    )
    sampler: Choice | None = Field(
        default=None,
        description="how they are chosen: uniform (the default), by_size, or a trace of who is "
        'there, e.g. {name = "trace", path = "trace.csv"}',
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

    @model_validator(mode="after")
    def _each_once(self) -> EvaluationSection:
        if len({*self.parts}) < len(self.parts):
            raise ValueError(f"parts: {', '.join(self.parts)} has a name twice; name each once")
        return self


class CheckpointSection(Section):
    """What is kept to go on from after a kill."""

    every: int | None = Field(
        default=None, ge=1, description="rounds between checkpoints, at least 1"
    )
    keep: int = Field(
        default=2, ge=2, description="checkpoints to keep, at least 2: one may be damaged"
    )


class StoppingSection(Section):
    """When a run ends before its last round."""

    patience: int = Field(ge=1, description="evaluations without a better one, at least 1")
    least: float = Field(
        default=0.0, ge=0, description="by how much the main metric must be better to count"
    )
    part: Literal["train", "validation"] = Field(
        default="validation", description="the data that decide: validation or train, never test"
    )


class FaultsSection(Section):
    """Faults on purpose, drawn for every client and round from the seed alone."""

    drop: float = Field(default=0.0, ge=0, le=1, description="share that does not take part")
    slow: float = Field(default=0.0, ge=0, le=1, description="share whose update comes too late")
    crash: float = Field(
        default=0.0, ge=0, le=1, description="share that crashes while it is trained"
    )
    corrupt: float = Field(default=0.0, ge=0, le=1, description="share that sends NaN")
    clients: tuple[int | str, ...] | None = Field(
        default=None, description="numbers or names of the clients that have faults; default: all"
    )

    @model_validator(mode="after")
    def _adds_up(self) -> FaultsSection:
        total = self.drop + self.slow + self.crash + self.corrupt
        if total > 1 + 1e-9:
            raise ValueError(f"drop: the shares add up to {total:g}, more than 1")
        return self


class GroupSection(Section):
    """Clients that differ from the others in net or method."""

    clients: tuple[int | str, ...] = Field(default=(), description="numbers or names of clients")
    tag: str | None = Field(
        default=None, description="a tag of the data, with `value`, instead of `clients`"
    )
    value: int | None = Field(default=None, description="the value of the tag")
    net: Choice
    method: Choice

    @model_validator(mode="after")
    def _says_who(self) -> GroupSection:
        by_tag = self.tag is not None
        if bool(self.clients) == by_tag or by_tag != (self.value is not None):
            raise ValueError("clients: give numbers or names, or a tag and its value")
        return self
