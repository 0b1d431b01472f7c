"""What a run of a method on data may be told beside both: which settings there are, and the tables
of a configuration that they become.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal, TypedDict

import numpy as np

from fedblocks.config.options import Table
from fedblocks.core.errors import UserError, nearest
from fedblocks.core.samplers import Sampler

# settings that stand in a table of their own, and the field that a plain value is
TABLES = {
    "cohort": ("cohort", "size"),
    "unseen": ("data", "unseen"),
    "evaluation": ("evaluation", "every"),
    "checkpoint": ("checkpoint", "every"),
    "stopping": ("stopping", "patience"),
}
# what a configuration has, too, and the objects say here
ELSEWHERE = {
    "task": 'give it with the data: run(method, data.with_task(fb.Task("regression")), ...)',
    "net": "give it with the method: run(FedAvg(net, lr=0.1), data, ...)",
    "method": "give it as the first argument: run(FedAvg(net, lr=0.1), data, ...)",
    "groups": "give them to run; a comparison has one method for all clients",
}


class Settings(TypedDict, total=False):
    """What else a run may be told, with the defaults of a configuration;
    docs/configuration.md explains each.
    """

    seed: int  # of initial models, cohorts and batches
    cohort: int | float | Mapping[str, Any]  # clients a round: a number, or a share; {"size": 10}
    sampler: Sampler  # chooses them: SizeSampler(), TraceSampler("trace.csv"), or a function
    # {"every": 1, "parts": ["validation", "test"], "local": False}, or a number: "every"
    evaluation: int | Mapping[str, Any]
    checkpoint: int | Mapping[str, Any]  # {"every": 1, "keep": 2}, or a number: "every"
    stopping: int | Mapping[str, Any]  # ends early: {"patience": 5}, or a number
    faults: Mapping[str, Any]  # on purpose: {"drop": 0.1, "slow": 0.1}
    engine: Literal["auto", "sequential", "vectorised", "processes"]
    device: str  # "auto", "cpu", "cuda", or one GPU of several: "cuda:1"
    threads: int
    processes: int
    memory: str  # such as "8GiB"
    chunk: int  # clients trained at once
    precision: Literal["float32", "tf32", "bf16"]
    unseen: float  # share of clients that are never trained on
    allow_degenerate: bool  # options that make a method another one


def check_settings(names: Iterable[str]) -> None:
    """Every setting is one that a run follows: what is not is refused, never only recorded."""
    known = Settings.__annotations__
    unknown = next((name for name in names if name not in known), None)
    if unknown is None:
        return
    if unknown in ELSEWHERE:
        raise UserError(f"{unknown} is no setting of a run of objects", ELSEWHERE[unknown])
    raise UserError(f"{unknown}: there is no such setting", nearest(unknown, known))


def settings_table(settings: Mapping[str, Any]) -> Table:
    """Settings as a configuration has them; the sampler, an object, is left out."""
    table: Table = {}
    for key, setting in settings.items():
        value = plain_numbers(setting)
        if key == "sampler" or value is None:
            continue
        section, field = TABLES.get(key, (key, None))
        if field is None:
            table[section] = value
            continue
        own = value if isinstance(value, dict) else {field: value}
        table[section] = {**table.get(section, {}), **own}
    return table


def plain_numbers(value: Any) -> Any:
    """A value whose numbers are Python's own: np.int64(3) means 3."""
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, Mapping):
        return {key: plain_numbers(one) for key, one in value.items()}
    return [plain_numbers(one) for one in value] if isinstance(value, list | tuple) else value
