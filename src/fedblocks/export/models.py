"""Export: fold a personal model, write it, read it back, compare, and only then keep it."""

from __future__ import annotations

import math
import os
import re
import shlex
from importlib.metadata import version
from pathlib import Path
from typing import Any, get_args

import numpy as np
import torch
from torch import Tensor

from fedblocks.config.model import ALL
from fedblocks.core.client_names import client_number
from fedblocks.core.errors import UserError, nearest
from fedblocks.core.method import Method
from fedblocks.core.torch_modes import in_own_modes
from fedblocks.data.arrays import FIELDS
from fedblocks.data.federation import Federation
from fedblocks.engines.scoring import score_outputs
from fedblocks.export.adapter_facts import facts_of
from fedblocks.export.card import Card, Format
from fedblocks.export.conversion import InputForm
from fedblocks.export.fold import Folded, changed_options, fold
from fedblocks.export.formats import Model, read, write
from fedblocks.export.overwriting import refuse_overwriting
from fedblocks.export.personal import Examples, Personal, personal
from fedblocks.export.probes import answers_of
from fedblocks.runs.newest import Which
from fedblocks.runs.python import Methods
from fedblocks.runs.result import RunResult
from fedblocks.runs.storage import constants
from fedblocks.runs.storage.code_record import Entry, code_options, read_entries
from fedblocks.runs.storage.folder import CONFIG, write_atomically

TOLERANCE = 1e-5  # between logits, of the size of the largest where that is above 1
EXAMPLES = 256  # of the client's own, on which a file is compared


@in_own_modes
def export_model(
    run: str | Path | RunResult,
    client: int | str,
    format: Format = "safetensors",
    out: str | Path | None = None,
    method: Methods | None = None,
    data: Federation | None = None,
    *,
    force: bool = False,
    which: Which = "last",
) -> Path:
    """Write a client's personal model, in its smallest form, and beside it a card; where the model
    was written.

    The client is a number, counted from 0, or a name. The file is read again and compared with the
    run's own model on inputs of the client; one that differs is not kept. A run that was started
    with a method and data needs the same again. A file that exists is replaced only with `force`.
    `which="best"` takes the checkpoint that did best on validation data instead of the last.
    """
    run = run.folder if isinstance(run, RunResult) else run
    path = _place_for(out, client, format)
    of_run = [Path(run) / "checkpoints", Path(run) / constants.FILE]
    refuse_overwriting(path, of_run, force)
    refuse_overwriting(path.with_name(f"{path.name}.md"), of_run, force)
    model = personal(run, client, method, data, which=which)
    folded = fold(model)
    code = read_entries(Path(run))
    commands = _commands(Path(run), _client_text(model), format, path, code)
    commands[-1] += " --best" if which == "best" else ""
    card = _card(model, folded, format, commands, code)
    x = model.examples(EXAMPLES).x
    draft = path.with_name(f".draft-{os.getpid()}-{path.name}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write(folded, card, x, draft)
        difference = _difference(model, _read_back(draft, model, method), x)
        os.replace(draft, path)
        write_atomically(path.with_name(f"{path.name}.md"), card.markdown(difference))
    except OSError as error:
        raise UserError(
            f"cannot write {path}: {error.strerror or error}", "choose another file with --out"
        ) from error
    finally:
        draft.unlink(missing_ok=True)
    return path


def _place_for(out: str | Path | None, client: int | str, format: str) -> Path:
    """The file to write, which ends as its format does."""
    if format not in get_args(Format):
        raise UserError(f"there is no format {format!r}", nearest(str(format), get_args(Format)))
    path = Path(out) if out is not None else Path(f"client-{_in_a_file_name(client)}.{format}")
    if path.suffix != f".{format}":
        raise UserError(
            f"{path} does not end in .{format}", f"name it {path.with_suffix(f'.{format}')}"
        )
    return path


def _in_a_file_name(client: int | str) -> str:
    return re.sub(r"[^\w.-]", "_", str(client))


def _read_back(draft: Path, model: Personal, method: Methods | None) -> Model:
    return read(draft, None if method is None else model.method, trust=True)  # our own


def _difference(original: Personal, model: Model, x: Tensor) -> float:
    """The largest difference between the logits of the file and of the original;
    refused where it matters.
    """
    wanted = original.predict(x)
    largest = float((model.logits(x) - wanted).abs().max())
    allowed = TOLERANCE * max(1.0, float(wanted.abs().max()))
    if not largest <= allowed:
        message = (
            f"the {model.card.format} model differs from the original by {largest:.1e} on inputs "
            f"of client {original.client}, which is more than {allowed:.1e}; nothing was kept"
        )
        raise UserError(message, "choose another format, and report it")
    return largest


def _card(
    model: Personal, folded: Folded, format: Format, commands: list[str], code: list[Entry]
) -> Card:
    examples = model.examples(EXAMPLES)
    config = model.config
    if config is None:
        raise ValueError("only a model of a run has a card")
    tables = config if model.group == ALL else config.groups[model.group]
    slim = changed_options(model.method, folded.core) if isinstance(folded.core, Method) else {}
    return Card(
        format=format,
        kind="method" if isinstance(folded.core, Method) else "net",
        method=tables.method.name,
        client=model.client,
        client_name=str(model.data.names[model.client]),
        round=model.round,
        seed=config.seed,
        data=config.data.name,
        data_hash=model.data.hash(),
        **_scores(model, examples),
        examples=len(examples.x),
        part=examples.part,
        input_shape=list(examples.x.shape[1:]),
        input_type=str(examples.x.dtype).removeprefix("torch."),
        classes=model.data.classes,
        numbers=folded.numbers,
        numbers_before=sum(v.numel() for block in model.blocks.values() for v in block.values()),
        net=dict(tables.net.table),
        options={**{k: v for k, v in tables.method.table.items() if k != "name"}, **slim},
        commands=commands,
        code=code,
        class_names=list(model.data.about.get("class_names", [])),
        columns=list(model.data.about.get("columns", [])),
        fields=model.data.about.get(FIELDS, {}),
        takes_bytes=model.takes_bytes,
        adapters=facts_of(folded.core),
        answers=answers_of(folded, InputForm.of(model.data)),
        versions={
            "fedblocks": version("fedblocks"),
            "torch": torch.__version__,
            "numpy": np.__version__,
        },
    )


def _scores(model: Personal, examples: Examples) -> dict[str, Any]:
    """How well the model does on the client's own examples, as its card says it."""
    task, outputs = model.data.task, model.predict(examples.x)
    counts = score_outputs(task, outputs, examples.y)
    has_accuracy = any(metric.name == "accuracy" for metric in task.all_metrics) and counts[1] > 0
    accuracy = counts[0] / counts[1] if has_accuracy else None
    kind = {} if task.kind == "classification" else {"task": task.kind}
    values = {} if task.counts_alone else task.values(counts)
    metrics = {name: None if math.isnan(value) else value for name, value in values.items()}
    return {"accuracy": accuracy, **kind, "metrics": metrics}


def _client_text(model: Personal) -> str:
    """The client as a command takes it: its number, unless another client is called so."""
    number, names = str(model.client), model.data.names
    return number if client_number(number, names) == model.client else names[model.client]


def _commands(run: Path, client: str, format: Format, out: Path, code: list[Entry]) -> list[str]:
    """What makes the run, and then the file, once more."""
    files = code_options(code)
    again = ["fedblocks", "run", str(run / CONFIG), "--out", "NEW_RUN", *files]
    options = ["--client", client, "--format", format, "--out", out.name]
    export = ["fedblocks", "export", "NEW_RUN", *options, *files]
    return [shlex.join(again), shlex.join(export)]
