"""What an exported model answers to a few inputs that a seed makes; other code answers others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from pathlib import Path

import torch
from torch import Tensor

from fedblocks.core.errors import UserError
from fedblocks.core.outside_modules import seeded
from fedblocks.core.random import uniform
from fedblocks.export.conversion import InputForm

Logits = Callable[[Tensor], Tensor]  # [batch, ...] -> [batch, ..., classes]
Answers = list[list[float]]  # for each probe, some outputs; none where they are not finite
SCALES = (1.0, 8.0, 64.0)  # of the probes: nobody knows on which numbers a net was trained
OUTPUTS = 16  # of each probe, at most
LARGEST = 10_000_000  # numbers of an example: larger ones are not tried
TOLERANCE = 5e-3  # of a probe's largest output: machines and versions differ in last digits


def answers_of(logits: Logits, form: InputForm) -> Answers:
    """Outputs for every probe; none at all where the model cannot take them."""
    try:
        return _ask(logits, form)
    except Exception:  # tokens that it does not know, perhaps
        return []


def check_answers(answers: Answers, logits: Logits, form: InputForm, path: Path) -> None:
    """Refuse a net or a method that is another one since its file was written."""
    now = _ask(logits, form) if any(answers) else []
    pairs = zip(answers, now, strict=False)
    if not all(not before or _are_close(before, after) for before, after in pairs):
        raise UserError(
            f"the net or the method is not the one that {path} was exported with: for the same "
            "inputs it gives other outputs than those in its card",
            "bring the net and the method as they were then, or export the model again",
        )


def _ask(logits: Logits, form: InputForm) -> Answers:
    if prod(form.shape) > LARGEST:
        return []
    with seeded(0), torch.no_grad():
        return [_spread(logits(_probe(form, number))) for number in range(len(SCALES))]


def _probe(form: InputForm, number: int) -> Tensor:
    """[1, ...]: fractions around 0; 0 or 1 for tokens and categories, of which any net has two."""
    drawn = uniform(torch.tensor(number), (1, prod(form.shape)))
    tokens, fractions = (drawn > 0.5).to(drawn.dtype), SCALES[number] * (2 * drawn - 1)
    if form.fields is not None:
        sizes = zip(form.fields.whole, form.fields.sizes, strict=True)
        is_whole = torch.tensor([whole for whole, size in sizes for _ in range(size)])
        values = torch.where(is_whole, tokens, fractions)
    else:
        values = fractions if form.dtype.is_floating_point else tokens
    return values.view(1, *form.shape).to(form.dtype)


def _spread(outputs: Tensor) -> list[float]:
    """Some of the outputs, from the first to the last."""
    values = outputs.detach().double().flatten()
    if not bool(torch.isfinite(values).all()):
        return []
    places = torch.linspace(0, len(values) - 1, min(OUTPUTS, len(values))).long()
    numbers: list[float] = values[places].tolist()
    return numbers


def _are_close(before: Sequence[float], now: Sequence[float]) -> bool:
    near = TOLERANCE * max(map(abs, before))
    return len(before) == len(now) and all(
        abs(one - other) <= near for one, other in zip(before, now, strict=True)
    )
