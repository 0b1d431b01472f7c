"""A method with a net for the digits, to look at: what `fedblocks plan` shows."""

from __future__ import annotations

from collections.abc import Sequence

from fedblocks.config.catalogue import check_method_name
from fedblocks.config.choices import another_net, any_net, make, options
from fedblocks.config.model import ALL
from fedblocks.config.options import Table
from fedblocks.config.presets import change, digits
from fedblocks.config.sources import Source
from fedblocks.core.errors import UserError
from fedblocks.core.method import Method
from fedblocks.methods.lora.adapted import NEEDS_ADAPTERS
from fedblocks.runs.build import prepare


def method_on_digits(name: str, changes: Sequence[str]) -> Method:
    """A method with a net for the digits, and changes such as `method.branches=4` or
    `net.name=cnn`.
    """
    table = digits(check_method_name(name)).resolved()
    own = [_below_method(name, text) for text in changes]
    config = change(table, Source("digits"), [*_fitting_net(name, table, own), *own])
    try:
        return prepare(config).experiment.methods[ALL]
    except UserError as error:
        if NEEDS_ADAPTERS not in error.message:
            raise
        fix = "name a net that a file for --code puts into NETS, and the home of its head: "
        fix += "--set net.name=NAME --set head=private"
        raise UserError(error.message, fix) from error


def _fitting_net(name: str, table: Table, changes: Sequence[str]) -> list[str]:
    """Another net, where a method is not itself without norms and nobody chose one."""
    choose = any(text.partition("=")[0].strip().startswith("net") for text in changes)
    values = {key: value for key, value in table["method"].items() if key != "name"}
    if choose or not _is_degenerate(name, values):
        return []
    return ["net.name=cnn", "net.batch_norm=true"]


def _is_degenerate(name: str, values: Table) -> bool:
    """Whether a method says of a plain net, and not of one with norms, that it is another one."""
    table = {"name": name, **values}
    try:
        plain, normed = (make("method", table, net=net()) for net in (any_net, another_net))
    except UserError:  # it needs the net of the digits
        return False
    return bool(plain.degenerate()) and not normed.degenerate()


def _below_method(name: str, change: str) -> str:
    """`branches=4` is short for `method.branches=4`."""
    key = change.partition("=")[0].strip()
    return f"method.{change}" if key in options("method", name) else change
