"""A method's plan as a table: where each block lives, who sees and writes it, when it
trains. Printed from the code.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass

import torch

from fedblocks.core.blocks import (
    Block,
    Fresh,
    Frozen,
    Generated,
    Mixture,
    PerClient,
    Pool,
    Private,
    Read,
    Selection,
    ServerOnly,
    Shared,
)
from fedblocks.core.description import Described
from fedblocks.core.errors import count_of
from fedblocks.core.frozen import BASE, Base
from fedblocks.core.method import Method
from fedblocks.core.phases import Phase, Update
from fedblocks.core.rules import Average
from fedblocks.core.server import Cohort, default_read, own_server
from fedblocks.core.state import initial_state
from fedblocks.core.structure import check_structure

COLUMNS = ("block", "home", "sees", "writes", "phases")
OWN_WEIGHT = "as writes says"  # of a method that does not describe its weights


@dataclass(frozen=True)
class Plan:
    """What a reviewer should see of a method."""

    rows: list[dict[str, str]]  # one for each block, with the keys of COLUMNS
    phases: list[str]  # local training
    adaptation: list[str]  # before an evaluation
    joining: list[str]  # for a client that never took part
    views: list[str]

    def text(self) -> str:
        """The plan as plain text."""
        lines = [
            *_table(self.rows),
            *_numbered("train", self.phases),
            *_numbered("adapt", self.adaptation),
            *_numbered("join", self.joining),
            f"views: {', '.join(self.views)}",
        ]
        return "\n".join(lines) + "\n"


def plan(method: Method) -> Plan:
    """The plan of a method, with the options it has."""
    check_structure(method)
    base: dict[str, Block] = {BASE: Frozen(Base(method.net))} if method.net.base else {}
    layout = {**base, **method.blocks()}.items()
    reads = _reads(method)
    phases = method.phases()
    return Plan(
        rows=[_row(method, name, block, reads.get(name), phases) for name, block in layout],
        phases=[_phase(phase) for phase in phases],
        adaptation=[_phase(phase) for phase in method.adaptation()],
        joining=[_phase(phase) for phase in method.joining()],
        views=list(method.views()),
    )


def _numbered(title: str, items: list[str]) -> list[str]:
    if not items:
        return [f"{title}: nothing"]
    return [f"{title} {number}: {item}" for number, item in enumerate(items, 1)]


def _reads(method: Method) -> dict[str, Read]:
    """What four clients would be sent at the start."""
    layout = method.blocks()
    tags = {name: torch.zeros(4, dtype=torch.long) for name in method.tags}
    cohort = Cohort(torch.arange(4), torch.ones(4, dtype=torch.double), tags, 4, round=0, seed=0)
    server = own_server(layout, initial_state({"all": method}, 4, seed=0).server)
    federated = {
        name: default_read(b, cohort)
        for name, b in layout.items()
        if isinstance(b, Shared | Pool | PerClient)
    }
    return {**federated, **method.reads(server, cohort)}


def _row(
    method: Method, name: str, block: Block, read: Read | None, phases: list[Phase]
) -> dict[str, str]:
    trained = [str(number) for number, phase in enumerate(phases, 1) if name in phase.train]
    return {
        "block": name,
        "home": _home(block),
        "sees": _sees(block, read),
        "writes": _writes(method, name, block, read),
        "phases": ", ".join(trained) or "-",
    }


def _home(block: Block) -> str:
    match block:
        case Private():
            return "client"
        case Fresh():
            return "nobody"
        case Frozen():
            return "everybody, frozen"
        case ServerOnly():
            return "server only"
        case PerClient():
            return f"server: one per client, from {block.of}"
        case Pool():
            return f"server: {count_of(block.size, 'slot')}" + _named(block)
        case Shared():
            return "server" + _named(block)


def _named(block: Shared | Pool) -> str:
    name = f' as "{block.name}"' if block.name else ""
    rule = "" if isinstance(block.rule, Average) else f", {_brief(block.rule)}"
    return name + rule


def _sees(block: Block, read: Read | None) -> str:
    match block, read:
        case Pool(on_request=True), _:
            return "the slots it asks for"
        case _, Mixture():
            return "1 copy, its own mixture"
        case _, Selection(slots=slots):
            many = slots.shape[1] if slots.dim() == 2 else 1
            return "1 copy" if many == 1 else f"{many} copies"
        case Private(), _:
            return "what it kept"
        case Fresh(part=None), _:
            return "made by prepare"
        case Fresh(), _:
            return "its initial value"
        case Frozen(), _:
            return "the same as all"
        case _, None:
            return "-"
        case _, Generated(values=values):
            return "1 copy, made for it" if values else "nothing"


def _writes(method: Method, name: str, block: Block, read: Read | None) -> str:
    if isinstance(block, PerClient):
        return "its own slot"
    if not isinstance(block, Shared | Pool):
        return "-"
    weight = "n x membership" if isinstance(read, Mixture) else "n"
    if type(method).writes is not Method.writes and not _describes_weights(type(method)):
        weight = OWN_WEIGHT
    elif isinstance(method.weight_label, Mapping):
        weight = method.weight_label.get(name, weight)
    elif isinstance(block, Pool) and type(method).writes is not Method.writes:
        weight = method.weight_label
    return f"{weight}, from {block.of}" if block.of else weight


def _describes_weights(kind: type[Method]) -> bool:
    """Whether `weight_label` says what `writes` computes."""
    return any("weight_label" in vars(one) for one in kind.__mro__ if one is not Described)


def _phase(phase: Phase) -> str:
    count, unit = (phase.epochs, "epoch") if phase.steps is None else (phase.steps, "step")
    length = f"{count} {unit}" if count == 1 else f"{count} {unit}s"
    updates = "; then ".join(_update(update) for update in phase.updates)
    return f"on {phase.on} for {length}: {updates}"


def _update(update: Update) -> str:
    optimizer = getattr(update.optimizer, "in_effect", update.optimizer)
    words = [" + ".join(update.train), f"lr {_brief(update.lr)}", _brief(optimizer)]
    if update.pull is not None:
        pull = update.pull
        now = "as it is" if pull.live else "as it began"
        words.append(f"{pull.block} pulled to {pull.to} {now} by {pull.strength}")
    if update.repeat > 1:
        words.append(f"{update.repeat} times")
    if update.project is not None:
        words.append("projected")
    return ", ".join(words)


def _brief(chosen: object) -> str:
    """A record by its name and what differs from its defaults."""
    if not is_dataclass(chosen):
        return str(chosen)
    values = [(f.name, getattr(chosen, f.name), f.default) for f in fields(chosen)]
    changed = [f"{name}={value}" for name, value, default in values if value != default]
    return type(chosen).__name__ + (f"({', '.join(changed)})" if changed else "")


def _table(rows: list[dict[str, str]]) -> list[str]:
    widths = {c: max(len(c), *(len(row[c]) for row in rows)) for c in COLUMNS}
    head = {c: c for c in COLUMNS}
    return ["  ".join(row[c].ljust(widths[c]) for c in COLUMNS).rstrip() for row in (head, *rows)]
