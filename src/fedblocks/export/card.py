"""The model card: what an exported model is, where it comes from, and how it did."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from math import prod
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from fedblocks.core.errors import UserError, count_of
from fedblocks.core.fields import Fields
from fedblocks.core.task_kinds import KINDS
from fedblocks.export.adapter_facts import AdapterFacts
from fedblocks.runs.storage.code_record import code_options

KEY = "fedblocks"  # under which a model file carries its card
LONGEST = 10_000  # characters of a table of options: every layer that it names is made
MOST_INPUT = 2**28  # numbers of one example
Positive = Annotated[int, Field(ge=1)]
Format = Literal["safetensors", "pt2", "onnx"]


def _of_bearable_length(table: dict[str, Any]) -> dict[str, Any]:
    if len(str(table)) > LONGEST:
        raise ValueError(f"it has more than {LONGEST} characters")
    return table


def _with_a_name(table: dict[str, Any]) -> dict[str, Any]:
    if not isinstance(table.get("name"), str):
        raise ValueError("it has no name")
    return table


def _of_bearable_size(shape: list[int]) -> list[int]:
    if prod(shape) > MOST_INPUT:
        raise ValueError("one example of that shape would fill the memory")
    return shape


def _known_task(kind: str) -> str:
    if kind not in KINDS:
        raise ValueError(f"{kind[:40]} is not a task")
    return kind


class Card(BaseModel):
    """Everything that one has to know to use a model, and to make it again."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    format: Format
    # a plain net, or blocks that the method puts together in every call
    kind: Literal["net", "method"]
    method: str
    client: int
    client_name: str
    round: int  # rounds of training behind it
    seed: int
    data: str  # name of the data set
    data_hash: str  # SHA-256 of the federation
    # on the client's own examples below; none where the task is judged by other metrics alone
    accuracy: float | None = None
    examples: int
    part: str  # of the client's data, that the examples are of
    input_shape: Annotated[list[Positive], AfterValidator(_of_bearable_size)]  # of one example
    input_type: str = Field(pattern="^(float64|float32|float16|bfloat16|int64|int32|uint8)$")
    classes: int = Field(ge=1, le=10**6)
    numbers: int  # that the model has
    numbers_before: int  # that the client's blocks had before they were folded
    # tables of the configuration, from which the net and the method are made again
    net: Annotated[
        dict[str, Any], AfterValidator(_with_a_name), AfterValidator(_of_bearable_length)
    ]
    options: Annotated[dict[str, Any], AfterValidator(_of_bearable_length)]
    commands: list[str]
    versions: dict[str, str]
    code: list[dict[str, str]] = []  # what defines the net and the method, where that is not ours
    class_names: list[str] = []  # of classes 0, 1, ..., where they have names
    columns: list[str] = []  # of a table, that the inputs are made of
    # of an example that has several: names, shapes and types
    fields: Annotated[dict[str, Any], AfterValidator(_of_bearable_length)] = {}
    # what is learned, and the metrics of the task on the same examples
    task: Annotated[str, AfterValidator(_known_task)] = "classification"
    metrics: dict[str, float | None] = {}
    # whether inputs of training were 0 to 1, as bytes become, or tokens
    takes_bytes: bool = True
    adapters: AdapterFacts | None = None  # of a net that has some
    # what it says of inputs that a seed makes, by which other code is noticed
    answers: Annotated[list[list[float]], Field(max_length=16)] = []

    @staticmethod
    def of(text: str | None, path: object) -> Card:
        """The card in a file, or a word on what is wrong with it."""
        if text is None:
            raise UserError(f"{path} was not made by `fedblocks export`", "export the model again")
        try:
            return Card.model_validate_json(text)
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(map(str, first["loc"]))
            raise UserError(
                f"{path} has a card that cannot be read: {where}: {first['msg']}", "export it again"
            ) from None

    def markdown(self, difference: float) -> str:
        """The card for people; `difference` is the largest one to the logits of the
        run's own model.
        """
        rows = {
            "method": self.method,
            "client": self.client_text,
            "rounds of training": self.round,
            "seed": self.seed,
            **self._scores(),
            "input": f"batches of {self._inputs()}, as the data set gives them",
            "output": f"{self._outputs()}{_in_brackets(self.class_names)}",
            "size": f"{self.numbers:,} numbers, from {self.numbers_before:,} in the client's "
            f"blocks",
            **self._adapters(),
            "largest difference to the run's own model": f"{difference:.1e}",
            "data": f"{self.data}, SHA-256 of the federation {self.data_hash}",
            "versions": ", ".join(f"{name} {version}" for name, version in self.versions.items()),
        }
        lines = [f"# Personal model of client {_cell(self.client_text)}", "", "| | |", "|---|---|"]
        lines += [f"| {name} | {_cell(value)} |" for name, value in rows.items()]
        lines += ["", "## Use it", "", *_USE[self.format, self.kind]]
        predict = ["fedblocks", "predict", "FILE", "--input", "INPUTS.npz"]
        trust = ["--trust"] if self.format == "pt2" else []
        lines += ["", f"    {shlex.join([*predict, *trust, *code_options(self.code)])}"]
        lines += ["", "## Make it again", "", *(f"    {line}" for line in self.commands)]
        return "\n".join([*lines, "", "## All of it as JSON", "", *_indent(self._json())]) + "\n"

    def _json(self) -> str:
        without = {name for name in ("accuracy", "adapters") if getattr(self, name) is None}
        return self.model_dump_json(indent=2, exclude=without)

    @property
    def client_text(self) -> str:
        """Number and name, where the name is another."""
        number = str(self.client)
        return number if self.client_name == number else f"{number} ({self.client_name})"

    def _scores(self) -> dict[str, str]:
        """A row for each metric, or for the accuracy alone."""
        known = self.metrics or {"accuracy": self.accuracy}
        where = f"on {count_of(self.examples, f'{self.part} example')} of this client"
        shown = {name: "-" if value is None else f"{value:.3f}" for name, value in known.items()}
        main = next(iter(known))
        heads = {main: f"{main}, the main metric"} if len(known) > 1 else {}
        return {heads.get(name, name): f"{text} {where}" for name, text in shown.items()}

    def _adapters(self) -> dict[str, str]:
        """Rows on adapters, and on the base that they need."""
        if self.adapters is None:
            return {}
        base = f"SHA-256 {self.adapters.base}"
        whose = base if self.format == "safetensors" else f"{base}, in the file"
        return {"adapters": self.adapters.text(), "base": whose}

    def _inputs(self) -> str:
        """Shape and type of an example; of several fields, those of each."""
        if not self.fields:
            return f"{_shape_text(self.input_shape)} ({self.input_type})"
        fields = Fields.from_table(self.fields)
        types = ["int64" if is_whole else "float32" for is_whole in fields.whole]
        each = zip(fields.labels, fields.shapes, types, strict=True)
        return ", ".join(f"{name}: {_shape_text(shape)} ({kind})" for name, shape, kind in each)

    def _outputs(self) -> str:
        if KINDS[self.task].of_classes:
            return f"logits of {self.classes} classes"
        if self.task == "regression":
            return f"{self.classes} {'number' if self.classes == 1 else 'numbers'}"
        return f"logits of {self.classes} labels, each there or not"


def _shape_text(shape: Sequence[int]) -> str:
    return " x ".join(map(str, shape)) or "one number"


_USE = {
    ("safetensors", "net"): [
        "The tensors have the names of the net's own `state_dict`; `fedblocks predict` makes the "
        "net from the table `net` below."
    ],
    ("safetensors", "method"): [
        "The tensors are named `block/tensor`; `fedblocks predict` makes the net and the method "
        "from the tables `net` and `options` below."
    ],
    ("pt2", "net"): ["`torch.export.load(FILE).module()(x)`, or `fedblocks predict`."],
    ("pt2", "method"): ["`torch.export.load(FILE).module()(x)`, or `fedblocks predict`."],
    ("onnx", "net"): ["Any ONNX runtime, or `fedblocks predict`."],
    ("onnx", "method"): ["Any ONNX runtime, or `fedblocks predict`."],
}


def _in_brackets(names: list[str], most: int = 20) -> str:
    more = ", ..." if len(names) > most else ""
    return f" ({', '.join(names[:most])}{more})" if names else ""


def _cell(value: object) -> str:
    """Text in a table of Markdown: no line breaks, no bars, no tags."""
    shown = "".join(c if c.isprintable() else " " for c in str(value))
    return shown.replace("&", "&amp;").replace("<", "&lt;").replace("|", "\\|")


def _indent(text: str) -> list[str]:
    return [f"    {line}" for line in text.splitlines()]
