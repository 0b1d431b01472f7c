"""A method with a net for the digits, to look at: what `fedblocks plan` shows."""

from __future__ import annotations

from collections.abc import Sequence

from fedblocks.config.catalogue import check_method_name
from fedblocks.config.choices import options
from fedblocks.config.model import ALL
from fedblocks.config.presets import change, digits
from fedblocks.config.sources import Source
from fedblocks.core.method import Method
from fedblocks.runs.build import prepare


def method_on_digits(name: str, changes: Sequence[str]) -> Method:
    """A method with a net for the digits, and changes such as `method.branches=4` or
    `net.name=cnn`.
    """
    table = digits(check_method_name(name)).resolved()
    config = change(table, Source("digits"), [_below_method(name, text) for text in changes])
    return prepare(config).experiment.methods[ALL]


def _below_method(name: str, change: str) -> str:
    """`branches=4` is short for `method.branches=4`."""
    key = change.partition("=")[0].strip()
    return f"method.{change}" if key in options("method", name) else change
