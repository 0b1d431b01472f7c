"""`fedblocks export` and `fedblocks predict`: write a client's model to a file, and
predict with it.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedblocks.cli.code import CodeFiles, ingredients_of, method_of, read_code
from fedblocks.cli.output import AsJson, plain_warnings, say, show_json, show_table, stoppable
from fedblocks.core.requirements import require_folder

if TYPE_CHECKING:
    from fedblocks.export.predict import Predictions

Force = Annotated[bool, typer.Option("--force", help="Replace files that exist.")]
Options = dict[str, Any]  # of `export_model` and `export_peft`
PEFT = "peft"  # a format that is a folder
SHOWN = 20  # predictions that are printed


_INPUTS = "Inputs: csv, parquet, npz with an array x, or a folder of images or a saved data set."


def export(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="Run folder.")],
    client: Annotated[
        str, typer.Option("--client", metavar="CLIENT", help="Number, counted from 0, or name.")
    ],
    format: Annotated[
        str, typer.Option("--format", help="Format: safetensors, pt2, onnx, or peft (a folder).")
    ] = "safetensors",
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="FILE", help="Model file; default: client-CLIENT.FORMAT."),
    ] = None,
    best: Annotated[
        bool, typer.Option("--best", help="Of the round that did best on validation data.")
    ] = False,
    force: Force = False,
    code: CodeFiles = None,
    as_json: AsJson = False,
) -> None:
    """Export a client's personal model.

    The model is reduced to its smallest form, checked against the run, and gets a model card.
    """

    def action() -> None:
        require_folder(folder)
        own = ingredients_of(folder, read_code(code))
        method, data = (None, None) if own is None else (own.methods, own.data)
        which = "best" if best else "last"
        options = {"method": method, "data": data, "force": force, "which": which}
        if format == PEFT:
            _export_peft(folder, client, out, options, as_json)
        else:
            _export_file(folder, client, format, out, options, as_json)

    stoppable(action)


def _export_file(
    folder: Path, client: str, format: str, out: Path | None, options: Options, as_json: bool
) -> None:
    """One file, and its model card."""
    from fedblocks.export.formats import format_of, read, read_card
    from fedblocks.export.models import export_model
    from fedblocks.runs.result import load_run

    with plain_warnings():
        path = export_model(folder, client, format_of(format), out, **options)
    card = read_card(path) or read(path, trust=True).card
    size = path.stat().st_size
    if as_json:
        about = {"name": path.name, "file": str(path), "bytes": size}
        show_json({**about, **card.model_dump(mode="json")})
        return
    run = load_run(folder)
    numbers = f"{card.numbers:,} numbers"
    if card.numbers < card.numbers_before:
        numbers += f" (reduced from {card.numbers_before:,} in the client's blocks)"
    say(f"{path}: {card.method}, client {card.client_text}, {numbers}, {size:,} bytes")
    say(f"{path}.md: its model card")
    if options["which"] == "best":
        say(f"the model is that of round {card.round}, the best by validation")
    if max(card.round, run.rounds) < run.config.rounds:
        unfinished = f"the model is that of round {card.round} of {run.config.rounds}"
        say(f"the run is not finished: {unfinished}")


def _export_peft(
    folder: Path, client: str, out: Path | None, options: Options, as_json: bool
) -> None:
    """Adapters and head, as peft writes them."""
    from fedblocks.export.peft_folder import TENSORS, export_peft

    place = Path(f"client-{client}-{PEFT}") if out is None else out
    with plain_warnings():
        path = export_peft(folder, client, place, **options)
    size = (path / TENSORS).stat().st_size
    if as_json:
        show_json({"name": path.name, "folder": str(path), "bytes": size})
        return
    best = ", of the round that is best by validation" if options["which"] == "best" else ""
    say(f"{path}: adapters of client {client} for peft{best}, {size:,} bytes")


def predict(
    model: Annotated[
        Path, typer.Argument(metavar="MODEL", help="Model file, written by `fedblocks export`.")
    ],
    inputs: Annotated[Path, typer.Option("--input", metavar="FILE", help=_INPUTS)],
    output: Annotated[
        Path | None,
        typer.Option("--output", metavar="FILE", help="File for all predictions: npz or csv."),
    ] = None,
    force: Force = False,
    trust: Annotated[
        bool, typer.Option("--trust", help="Read a .pt2 file, which can run code.")
    ] = False,
    code: CodeFiles = None,
    as_json: AsJson = False,
) -> None:
    """Predict with an exported model."""

    def action() -> None:
        from fedblocks.export.overwriting import refuse_overwriting
        from fedblocks.export.predict import predict as ask
        from fedblocks.export.predict import write_predictions

        if output is not None:
            refuse_overwriting(output, [model, inputs], force)
        predictions = ask(model, inputs, method_of(model, read_code(code)), trust=trust)
        if output is not None:
            write_predictions(predictions, output)
        labels = predictions.class_labels()
        # numbers have no probability
        highest = predictions.probabilities.max(-1, initial=0).tolist()
        if as_json:
            about = {"model": str(model), "inputs": len(labels)}
            show_json({**about, "labels": labels, "probabilities": highest})
            return
        rows: list[dict[str, Any]] = [
            {"input": number, "label": label, "probability": chance}
            for number, (label, chance) in enumerate(zip(predictions.texts(SHOWN), highest))
        ]
        show_table(_headings(predictions), rows)
        if len(labels) > SHOWN:
            how = "" if output is not None else "; --output FILE writes all"
            say(f"and {len(labels) - SHOWN} more{how}")

    stoppable(action)


def _headings(predictions: Predictions) -> dict[str, str]:
    """What is shown of each input; a label of each step, and numbers, without a probability."""
    if predictions.card.task == "regression":
        return {"input": "input", "label": ", ".join(predictions.card.class_names) or "number"}
    if predictions.card.task == "multi-label":
        return {"input": "input", "label": "labels", "probability": "highest probability"}
    if predictions.labels.ndim > 1:
        return {"input": "input", "label": "labels"}
    return {"input": "input", "label": "label", "probability": "probability"}
