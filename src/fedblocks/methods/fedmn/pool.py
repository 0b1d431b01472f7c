"""What can be chosen of FedMN, the pool of modules and the router that follow, and how
they are described.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Annotated, Literal, Self

import torch
from torch import Tensor

from fedblocks.core.client import Client
from fedblocks.core.method import Method
from fedblocks.core.modular_net import ModularNet
from fedblocks.core.options import AtLeast, Below, Conflict, Help, Length, Positive
from fedblocks.core.parts import Blocks
from fedblocks.core.schedules import Exponential, Schedule
from fedblocks.methods.fedmn.parts import edges, matrices, path_of, pool_conflicts, used
from fedblocks.methods.fedmn.router import Router


@dataclass(frozen=True, eq=False)
class ModulePool(Method):
    """The options of FedMN and its pool."""

    modules: Annotated[
        tuple[int, ...],
        AtLeast(1),
        Length(2),
        Help("encoders, blocks of each middle layer, outputs", usual="[2, 2, 2]"),
    ] = (2, 2, 2)
    widths: Annotated[
        tuple[int, ...] | None,
        AtLeast(1),
        Help("outputs of an encoder and of each middle block; default: 512, then 256"),
    ] = None
    dropout: Annotated[
        float | None, AtLeast(0), Below(1), Help("in middle blocks; default: 0.5")
    ] = None
    spread: Annotated[
        float | None,
        AtLeast(0),
        Help("standard deviation of the blocks' first weights; default: as torch makes them"),
    ] = None
    summary_width: Annotated[int, AtLeast(1), Help("of what the router sees of an input")] = 128
    label_width: Annotated[int, AtLeast(1), Help("of what it sees of a label")] = 64
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
        conflicts = pool_conflicts(
            self.net, self.modules, self.widths, dropout=self.dropout, spread=self.spread
        )
        if self.gate_mode == "st_hard" and self.noise_per == "step":
            why = "hard gates drawn anew would use modules that were not sent"
            conflicts.append(
                Conflict("noise_per", why, 'use gate_mode = "soft", or noise_per = "round"')
            )
        return conflicts

    @cached_property
    def path(self) -> ModularNet:
        """One module of each layer."""
        return path_of(self.net, self.modules, self.widths, self.dropout, self.spread)

    @cached_property
    def router(self) -> Router:
        """The net that decides the gates."""
        flags = self.unit_length, self.router_relu, self.router_samples
        return Router(self.path, edges(self.modules), self.summary_width, self.label_width, *flags)

    @property
    def layers(self) -> tuple[str, ...]:
        """The names of the blocks that hold the modules."""
        return (
            "encoders",
            *(f"modules.{number}" for number in range(2, len(self.modules))),
            "outputs",
        )

    def portrait(self, blocks: Blocks, client: Client) -> dict[str, Tensor]:
        return {"gates": blocks["gates"]["value"]}

    def slim(self, blocks: Blocks) -> tuple[Self, Blocks]:
        """A pool of the modules between the input and the prediction; the router has
        done its work.
        """
        gates = matrices(blocks["gates"]["value"], self.modules)
        kept = used(gates)
        left = [
            gate[after][:, before]
            for gate, before, after in zip(gates, kept, kept[1:], strict=False)
        ]
        pools = {
            n: {k: v[where] for k, v in blocks[n].items()}
            for n, where in zip(self.layers, kept, strict=False)
        }
        smaller = replace(self, modules=tuple(len(where) for where in kept[:-1]))
        return smaller, {**pools, "gates": {"value": torch.cat([gate.flatten() for gate in left])}}

    def degenerate(self) -> list[str]:
        single = all(count == 1 for count in self.modules)
        return [f"modules = {self.modules} leaves one path: FedAvg on that net"] if single else []
