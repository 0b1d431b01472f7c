"""What can be chosen of FedMN alone, its pool of modules and its router, and a smaller pool."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Annotated, Literal, Self

import torch

from fedblocks.core.options import AtLeast, Conflict, Help, Positive
from fedblocks.core.parts import Blocks
from fedblocks.core.schedules import Exponential, Schedule
from fedblocks.methods.fedmn.gates import edges, matrices, modules_used
from fedblocks.methods.fedmn.options import PoolOptions
from fedblocks.methods.fedmn.router import Router


@dataclass(frozen=True, eq=False)
class ModulePool(PoolOptions):
    """The options of FedMN, and its pool."""

    unit_length: Annotated[bool, Help("the router scales each example's summary to length 1")] = (
        True
    )
    router_relu: Annotated[bool, Help("and leaves out negative numbers")] = True
    router_lr: Annotated[
        float | Schedule | None,
        Positive(),
        Help("of a router that steps after the modules; default: with them, at their lr"),
    ] = None
    router_samples: Annotated[
        int, AtLeast(0), Help("examples that the router looks at in a step; 0: all", usual="256")
    ] = 256
    gate_mode: Annotated[
        Literal["st_hard", "soft"],
        Help(
            '"st_hard": hard choices, soft gradients; "soft": relaxed choices, every module travels'
        ),
    ] = "st_hard"
    noise_per: Annotated[
        Literal["round", "step"],
        Help('"round": one draw of the gates; "step": a new one for each batch, soft gates only'),
    ] = "round"
    eval_gate: Annotated[
        Literal["mode", "sample", "soft"],
        Help('"mode": the more probable choice; "sample": a draw; "soft": the probabilities'),
    ] = "mode"
    temperature: Annotated[float | Schedule, Positive(), Help("tau of the gates")] = field(
        default_factory=lambda: Exponential(1.0, 0.1, 150)
    )
    normalise_blocks: Annotated[
        bool, Help("average over those who used a block; false: over all clients, as printed")
    ] = True

    def conflicts(self) -> list[Conflict]:
        conflicts = self.pool_conflicts(dropout=self.dropout, spread=self.spread)
        if self.gate_mode == "st_hard" and self.noise_per == "step":
            why = "hard gates drawn anew would use modules that were not sent"
            fix = 'use gate_mode = "soft", or noise_per = "round"'
            conflicts.append(Conflict("noise_per", why, fix))
        return conflicts

    @cached_property
    def router(self) -> Router:
        """The net that decides the gates."""
        return Router(
            self.path,
            edges(self.modules),
            self.summary_width,
            self.label_width,
            unit_length=self.unit_length,
            relu=self.router_relu,
            samples=self.router_samples,
        )

    @property
    def layers(self) -> tuple[str, ...]:
        """The names of the blocks that hold the modules."""
        middle = [f"modules.{number}" for number in range(2, len(self.modules))]
        return ("encoders", *middle, "outputs")

    def slim(self, blocks: Blocks) -> tuple[Self, Blocks]:
        """A pool of the modules between the input and the prediction; the router has
        done its work.
        """
        gates = matrices(blocks["gates"]["value"], self.modules)
        kept = modules_used(gates)
        edges_kept = zip(gates, kept, kept[1:], strict=False)
        left = [gate[after][:, before] for gate, before, after in edges_kept]
        pools = {
            name: {k: v[where] for k, v in blocks[name].items()}
            for name, where in zip(self.layers, kept, strict=False)
        }
        smaller = replace(self, modules=tuple(len(where) for where in kept[:-1]))
        return smaller, {**pools, "gates": {"value": torch.cat([gate.flatten() for gate in left])}}

    def degenerate(self) -> list[str]:
        single = all(count == 1 for count in self.modules)
        return [f"modules = {self.modules} leaves one path: FedAvg on that net"] if single else []
