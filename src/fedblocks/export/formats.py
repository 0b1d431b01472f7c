"""Model files in three formats, each with its card inside, and how they are read again."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
import safetensors.torch
import torch
from torch import Tensor

from fedblocks.config.choices import make
from fedblocks.config.code.ingredients import method_table
from fedblocks.config.registry import PYTHON, kinds
from fedblocks.core.errors import UserError
from fedblocks.core.method import Method
from fedblocks.core.net import Net
from fedblocks.core.task import Task
from fedblocks.export.adapter_facts import check_facts
from fedblocks.export.card import KEY, Card, Format
from fedblocks.export.conversion import InputForm
from fedblocks.export.fold import CONSTANTS, Folded, as_blocks
from fedblocks.export.probes import check_answers
from fedblocks.export.programs import first_line, followed, program_of, quiet
from fedblocks.runs.storage.code_record import what_to_add

FORMATS: tuple[Format, ...] = ("safetensors", "pt2", "onnx")
_CARD_FILE = f"{KEY}.json"


@dataclass(frozen=True, eq=False)
class Model:
    """A model from a file."""

    card: Card
    logits: Callable[[Tensor], Tensor]  # [batch, ...] -> [batch, ..., classes]


def format_of(name: str) -> Format:
    """A format by its name."""
    for known in FORMATS:
        if name == known:
            return known
    raise UserError(f'there is no format "{name}"', f"use {', '.join(FORMATS)}")


def write(model: Folded, card: Card, x: Tensor, path: Path) -> None:
    """Write a model; `x` are a few inputs, of which only the number may be another one later."""
    match card.format:
        case "safetensors":
            tensors = {name: value.contiguous() for name, value in model.tensors().items()}
            safetensors.torch.save_file(tensors, path, {KEY: card.model_dump_json()})
        case "pt2":
            program = program_of(model, x, card.format)
            with path.open("wb") as file:
                extra = {_CARD_FILE: card.model_dump_json()}
                torch.export.save(program, file, extra_files=extra)
        case "onnx":
            _write_onnx(program_of(model, x, card.format), card, path)


def read(path: Path, method: Method | None = None, *, trust: bool = False) -> Model:
    """A model that `write` wrote; tensors of a net that has no name need the method
    that it was trained with. A .pt2 file can hold code, and is read only with `trust`.
    """
    if not path.is_file():
        message = f"{path} is not a file" if path.exists() else f"{path} does not exist"
        raise UserError(message, "name an exported model")
    if path.suffix == ".pt2" and not trust:
        raise UserError(
            f"{path} is a .pt2 file, which can run code on this machine when it is read",
            "if you trust where it comes from, add --trust (in Python: trust=True); .safetensors "
            "and .onnx hold no code",
        )
    readers: dict[str, Callable[[Path], Model]] = {".pt2": _pt2, ".onnx": _onnx}
    if path.suffix == ".safetensors":
        return _safetensors(path, method)
    if path.suffix not in readers:
        raise UserError(
            f"{path}: a model file ends in .safetensors, .pt2 or .onnx", "name an exported model"
        )
    return readers[path.suffix](path)


def read_card(path: Path) -> Card | None:
    """The card of a file of tensors, which needs the code of its net; of the other
    formats, none.
    """
    if path.suffix != ".safetensors" or not path.is_file():
        return None
    try:
        with safetensors.safe_open(path, framework="pt") as file:
            return Card.of((file.metadata() or {}).get(KEY), path)
    except (safetensors.SafetensorError, OSError) as error:
        raise UserError(f"cannot read {path}: {error}", "export the model again") from error


def _write_onnx(program: torch.export.ExportedProgram, card: Card, path: Path) -> None:
    need("onnx", "onnxscript")
    with quiet(), followed("onnx"):
        exported = torch.onnx.export(
            program, dynamo=True, verbose=False, input_names=["x"], output_names=["logits"]
        )
    if exported is None:
        raise UserError("torch made no ONNX model", "choose another format")
    exported.model.metadata_props[KEY] = card.model_dump_json()
    with quiet():
        exported.save(path, external_data=False)


def _safetensors(path: Path, method: Method | None) -> Model:
    try:
        with safetensors.safe_open(path, framework="pt") as file:
            card = Card.of((file.metadata() or {}).get(KEY), path)
            tensors = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118 - not a dict
    except (safetensors.SafetensorError, OSError) as error:
        raise UserError(f"cannot read {path}: {error}", "export the model again") from error
    with _fitting(path):
        with torch.device("meta"):  # nothing is allocated for what a card promises
            _check_shapes(tensors, _core(card, method, path))
        model = Folded(tensors, _core(card, method, path), Task(card.task))
        check_facts(card.adapters, model.core, path)
        _restore_constants(model)
        _try_out(model, card)
        check_answers(card.answers, model, InputForm.of_card(card), path)
    return Model(card, lambda x: model(x).detach())


def _check_shapes(tensors: Mapping[str, Tensor], core: Net | Method) -> None:
    """Refuse tensors of other shapes than the net's; of a method's net, one that is larger than
    all tensors together.
    """
    if isinstance(core, Method):
        largest = max((value.numel() for value in core.net.init(0).values()), default=0)
        if largest > sum(value.numel() for value in tensors.values()):
            raise ValueError("its net is larger than the file")
        return
    for name, value in core.init(0).items():
        if tensors[name].shape != value.shape:
            raise ValueError(f"{name} is {list(tensors[name].shape)}, not {list(value.shape)}")


def _try_out(model: Folded, card: Card) -> None:
    """Refuse a net with other outputs than the card's."""
    with torch.no_grad():
        x = torch.zeros(1, *card.input_shape, dtype=getattr(torch, card.input_type))
        if model(x).shape[-1] != card.classes:
            raise ValueError(f"it has {model(x).shape[-1]} outputs, not {card.classes}")


@contextmanager
def _fitting(path: Path) -> Iterator[None]:
    """Errors in making a net of a card and its tensors mean that they do not fit."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        reason = f"{type(error).__name__}: {first_line(error)}"
        raise UserError(
            f"the tensors of {path} do not fit the net of its card ({reason})",
            "export the model again",
        ) from error


def _restore_constants(model: Folded) -> None:
    """Give the net the constants of the file."""
    tensors = model.tensors()
    if isinstance(model.core, Method):
        net = model.core.net
        stored = as_blocks(tensors).get(CONSTANTS, {})
    else:
        net = model.core
        stored = {name: value for name, value in tensors.items() if name not in net.names}
    if stored or net.constant_names:
        net.set_constants(stored)


def _core(card: Card, method: Method | None, path: Path) -> Net | Method:
    """What the tensors belong to: made from the card's tables, or taken from the method
    that was handed over.
    """
    if method is not None:
        return method.net if card.kind == "net" else _with_options(method, card.options)
    if card.net["name"] == PYTHON:
        program = what_to_add(card.code, "the program that started the run")
        fix = f"{program}, or export it as pt2 or onnx"
        raise UserError(f"the net of {path} was made by a Python program", fix)
    for kind, name in (("net", card.net["name"]), ("method", card.method)):
        if name not in kinds()[kind]:
            fix = what_to_add(card.code, f'{kind} "{name}"')
            raise UserError(f'{path} needs the {kind} "{name}", which is not known here', fix)
    net: Net = make("net", card.net, input_shape=tuple(card.input_shape), classes=card.classes)
    if card.kind == "net":
        return net
    method = make("method", {"name": card.method, **card.options}, net=net)
    return method


def _with_options(method: Method, options: Mapping[str, Any]) -> Method:
    """The method with the options of a slim model, such as fewer modules. What is no plain value
    (schedules, optimizers, augmentations) is for training, and stays the method's own.
    """
    before = method_table(method)
    changed: dict[str, Any] = {
        k: tuple(v) if isinstance(v, list) else v
        for k, v in options.items()
        if before.get(k) != v and _is_plain(v) and _is_plain(getattr(method, k, None))
    }
    return replace(method, **changed)


def _is_plain(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return all(_is_plain(one) for one in value)
    return isinstance(value, bool | int | float | str)


def _pt2(path: Path) -> Model:
    extra = {_CARD_FILE: ""}
    try:
        with quiet(), path.open("rb") as file:
            program = torch.export.load(file, extra_files=extra)
    except Exception as error:  # whatever a broken archive leads to
        message = f"cannot read {path}: {first_line(error)}"
        raise UserError(message, "export the model again") from error
    text: Any = extra[_CARD_FILE]
    card = Card.of((text.decode() if isinstance(text, bytes) else text) or None, path)
    module = program.module()
    return Model(card, lambda x: module(x).detach())


def _onnx(path: Path) -> Model:
    need("onnxruntime")
    import onnxruntime

    try:
        session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    except Exception as error:  # its errors have no common base
        message = f"cannot read {path}: {first_line(error)}"
        raise UserError(message, "export the model again") from error
    card = Card.of(session.get_modelmeta().custom_metadata_map.get(KEY), path)
    name = session.get_inputs()[0].name

    def logits(x: Tensor) -> Tensor:
        return torch.from_numpy(np.array(session.run(None, {name: x.numpy()})[0]))

    return Model(card, logits)


def need(*packages: str) -> None:
    """Refuse what the extra `export` is needed for and lacks."""
    from importlib.util import find_spec

    missing = [package for package in packages if find_spec(package) is None]
    if missing:
        raise UserError(f"ONNX needs the package {missing[0]}", 'pip install "fedblocks[export]"')
