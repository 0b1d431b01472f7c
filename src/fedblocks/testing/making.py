"""How the example of a method is made: the small federation, and what is usual in it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from importlib.resources import files
from typing import Any

from fedblocks.core.net import Net
from fedblocks.data.federation import Federation
from fedblocks.methods.fedavg import FedAvg
from fedblocks.testing.example import Alone, Example, Make, Reduction
from fedblocks.testing.federations import small_federation, small_net

Examples = dict[str, Callable[[], Example]]  # by the name of the method

# several batches each, most with a part left over
USUAL: dict[str, Any] = {"lr": 0.2, "epochs": 1, "batch_size": 4}
UNKNOWN = {
    "reviewed_plan": "no reviewed plan was given",
    "reductions": "no reductions were given",
}


def example_for(
    method: Make,
    *,
    net: Net | None = None,
    federation: Federation | None = None,
    plan: str | None = None,
    reductions: tuple[Reduction | Alone, ...] = (),
    others: Mapping[str, Any] | None = None,
    exceptions: Mapping[str, str] | None = None,
    rounds: int = 3,
    cohort: int = 4,
    seed: int = 0,
    **options: Any,
) -> Example:
    """An example for any method: `check_method(example_for(MyMethod, strength=0.5))`."""
    unknown = {"reviewed_plan": plan is None, "reductions": not reductions}
    missing = {name: UNKNOWN[name] for name, is_missing in unknown.items() if is_missing}
    return Example(
        name=getattr(method, "__name__", str(method)),
        method=method,
        options={"net": net or small_net(), **USUAL, **options},
        federation=federation or small_federation(tags=getattr(method, "tags", ())),
        rounds=rounds,
        cohort=cohort,
        seed=seed,
        others=others or {},
        reductions=reductions,
        plan=plan,
        exceptions={**missing, **(exceptions or {})},
    )


def stored_plan(name: str) -> str | None:
    """The reviewed plan of one of our methods."""
    path = files(__package__) / "plans" / f"{name}.txt"
    return path.read_text() if path.is_file() else None


def is_fedavg(says: str, blocks: Mapping[str, str], **options: Any) -> Reduction:
    """With these options a method is FedAvg."""
    return Reduction(f"{says} is FedAvg", FedAvg, blocks, options)


def ours(
    name: str,
    method: Make,
    *known: Reduction | Alone,
    exceptions: Mapping[str, str] | None = None,
    **options: Any,
) -> Callable[[], Example]:
    """An example for one of our methods: its plan must be reviewed and its reductions
    known, or excepted.
    """

    def make() -> Example:
        example = example_for(method, plan=stored_plan(name), reductions=known, **options)
        return replace(example, name=name, exceptions=exceptions or {})

    return make
