"""Models as graphs of operations, which torch makes by following their code without numbers."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr
from io import StringIO

import torch
from torch import Tensor

from fedblocks.core.errors import UserError
from fedblocks.core.own_code import line_of
from fedblocks.export.fold import Folded

_ASKS = "GuardOnDataDependentSymNode"  # to import it would take a second
_FIX = (
    'use format="safetensors" (--format safetensors), which holds the tensors: who reads it gives '
    "the code of the net, with --code FILE or in Python method=..."
)


def program_of(model: Folded, x: Tensor, form: str) -> torch.export.ExportedProgram:
    """The model as a graph whose batch may have any size."""
    some = x[torch.arange(3) % len(x)]  # three: one or two would be taken for numbers that stay
    # torch prints the graph of what it could not follow
    with quiet(), redirect_stderr(StringIO()), torch.no_grad(), followed(form):
        return torch.export.export(
            model, (some,), dynamic_shapes=({0: torch.export.Dim.DYNAMIC},), strict=False
        )


@contextmanager
def followed(form: str) -> Iterator[None]:
    """Say of a net that torch cannot follow which format it can have."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:  # whatever torch makes of other people's code
        why = f"torch cannot follow it ({first_line(error)})"
        if type(error).__name__ == _ASKS:
            why = (
                "its code asks for numbers, in an if or a shape, and a file of operations has none"
            )
        raise UserError(f"no {form} file of this net: {why}{line_of(error)}", _FIX) from error


@contextmanager
def quiet() -> Iterator[None]:
    """The exporter talks of packages that nobody asked for."""
    names = ("torch.onnx", "onnxscript", "onnx_ir", "torch.export", "torch.fx")
    loggers = [logging.getLogger(name) for name in names]
    before = [logger.level for logger in loggers]
    try:
        for logger in loggers:
            logger.setLevel(logging.ERROR)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, before):
            logger.setLevel(level)


def first_line(error: BaseException) -> str:
    """The first line of an error, or its kind."""
    return (str(error).splitlines() or [type(error).__name__])[0]
