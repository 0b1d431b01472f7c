"""What can be chosen of FedMN alone, its pool of modules and its router, and a smaller pool."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Annotated, Any, ClassVar, Literal, Self

import torch
from torch import Tensor

from fedblocks.core.modular_net import ModularNet, cut_before_head
from fedblocks.core.options import AtLeast, Below, Conflict, Help, Length, Positive
from fedblocks.core.parts import Blocks
from fedblocks.core.schedules import Exponential, Schedule
from fedblocks.methods._common.mixtures import StepScale
from fedblocks.methods.fedmn.gates import edges, matrices, modules_reached, modules_used
from fedblocks.methods.fedmn.options import PoolOptions
from fedblocks.methods.fedmn.router import Router

# the options with which FedMN is what its paper prints
AS_PRINTED: Mapping[str, Any] = {
    "modules": (2, 2, 2),
    "widths": (512, 256),
    "module_start": "independent",
    "lr_scale": "printed",
    "router_scale": "none",
    "router_spread": 1.0,
    "router_start": "drawn",
    "train_router": "all",
    "gate_noise": 1.0,
    "temperature": Exponential(1.0, 0.1, 150),
    "pretrain_rounds": 0,
    "travel": "reached",
}
ALWAYS_THERE = ("modules", "widths", "temperature")  # in every stored configuration


@dataclass(frozen=True, eq=False)
class ModulePool(PoolOptions):
    """The options of FedMN, and its pool."""

    later_options: ClassVar[Mapping[str, Any]] = {
        **{name: value for name, value in AS_PRINTED.items() if name not in ALWAYS_THERE},
        "reading": "apart",
        "router_groups": "auto",
    }

    modules: Annotated[
        tuple[int, ...],
        AtLeast(1),
        Length(2),
        Help("encoders, blocks of each middle layer, outputs; printed: [2, 2, 2]"),
    ] = (1, 8)
    widths: Annotated[
        tuple[int, ...] | None,
        AtLeast(1),
        Help(
            "of an encoder, which is the net with a wider last layer, and of each middle block; "
            "printed: [512, 256]. Default: the net itself is a path, cut before its last layer"
        ),
    ] = None
    dropout: Annotated[
        float | None,
        AtLeast(0),
        Below(1),
        Help("in middle blocks; default: 0.5 with `widths`, as printed, else none"),
    ] = None
    module_start: Annotated[
        Literal["alike", "independent"],
        Help('the modules of a layer start "alike", or each from weights of its own, as printed'),
    ] = "alike"
    lr_scale: StepScale = "mixture"

    reading: Annotated[
        Literal["apart", "joint"],
        Help('"apart": inputs beside labels; "joint": a layer sees both together, before the mean'),
    ] = "apart"
    unit_length: Annotated[bool, Help("the router scales each example's summary to length 1")] = (
        True
    )
    router_relu: Annotated[bool, Help("and leaves out negative numbers")] = True
    router_scale: Annotated[
        Literal["federation", "none"],
        Help(
            '"federation": mean summaries in units of the whole federation; "none": as they are, '
            "as printed"
        ),
    ] = "federation"
    router_spread: Annotated[
        float, AtLeast(0), Help("first weights of the routing head, times torch's; printed: 1")
    ] = 10.0
    router_start: Annotated[
        Literal["drawn", "updates"],
        Help(
            '"drawn": at random, as printed; "updates": after the first round the server fits the '
            "routing head to groups of clients whose modules changed alike"
        ),
    ] = "updates"
    router_groups: Annotated[
        int | Literal["auto"],
        AtLeast(1),
        Help('of first updates, for router_start = "updates"; "auto": as many as they show'),
    ] = "auto"
    train_router: Annotated[
        Literal["head", "all", "nothing"],
        Help(
            '"head": its last layer; "all": the whole router, as printed; "nothing": it stays '
            "as it was drawn, and is never sent"
        ),
    ] = "head"
    router_lr: Annotated[
        float | Schedule | None,
        Positive(),
        Help("of a router that steps after the modules; default: with them, at their lr"),
    ] = None
    router_samples: Annotated[
        int,
        AtLeast(0),
        Help(
            "examples that the router looks at in a step where all of it learns; 0: all",
            usual="256",
        ),
    ] = 256
    gate_mode: Annotated[
        Literal["st_hard", "soft"],
        Help(
            '"st_hard": hard choices, soft gradients; "soft": relaxed choices, every module travels'
        ),
    ] = "st_hard"
    gate_noise: Annotated[
        float | Schedule, AtLeast(0), Help("how much of the noise is in a draw; printed: 1")
    ] = 0.0
    noise_per: Annotated[
        Literal["round", "step"],
        Help('"round": one draw of the gates; "step": a new one for each batch, soft gates only'),
    ] = "round"
    eval_gate: Annotated[
        Literal["mode", "sample", "soft"],
        Help('"mode": the more probable choice; "sample": a draw; "soft": the probabilities'),
    ] = "mode"
    temperature: Annotated[float | Schedule, Positive(), Help("tau of the gates")] = field(
        default_factory=lambda: Exponential(1.0, 0.1, 1.0)
    )
    pretrain_rounds: Annotated[
        int, AtLeast(0), Help("first rounds in which all gates are open and the router rests")
    ] = 1
    travel: Annotated[
        Literal["used", "reached"],
        Help(
            '"used": modules on a way to the prediction; "reached": also those that lead nowhere, '
            "as printed"
        ),
    ] = "used"
    normalise_blocks: Annotated[
        bool, Help("average over those who used a block; false: over all clients, as printed")
    ] = True

    def conflicts(self) -> list[Conflict]:
        conflicts = self.pool_conflicts(dropout=self.dropout, spread=self.spread)
        if self.gate_mode == "st_hard" and self.noise_per == "step":
            why = "hard gates drawn anew would use modules that were not sent"
            fix = 'use gate_mode = "soft", or noise_per = "round"'
            conflicts.append(Conflict("noise_per", why, fix))
        if self.router_scale == "federation" and self.pretrain_rounds == 0:
            why = "the moments of the federation are first known after a round with open gates"
            fix = 'use at least 1, or router_scale = "none"'
            conflicts.append(Conflict("pretrain_rounds", why, fix))
        if self.router_start == "updates" and self.router_scale == "none":
            why = "the server learns what the router sees of clients from the federation's moments"
            fix = 'use router_scale = "federation", or router_start = "drawn"'
            conflicts.append(Conflict("router_start", why, fix))
        if self.router_start == "updates" and self.train_router == "nothing":
            why = "a router that is never sent cannot be fitted"
            fix = 'use train_router = "head", or router_start = "drawn"'
            conflicts.append(Conflict("router_start", why, fix))
        if self.train_router == "nothing" and self.router_lr is not None:
            why = "a router that does not train has no learning rate"
            conflicts.append(
                Conflict("router_lr", why, 'leave it out, or use train_router = "head"')
            )
        return conflicts

    @cached_property
    def path(self) -> ModularNet:
        """One module of each layer: with widths as printed, else the net itself."""
        if self.widths is not None or isinstance(self.net, ModularNet):
            return super().path
        dropout = 0.0 if self.dropout is None else self.dropout
        return cut_before_head(self.net, len(self.modules) - 2, dropout, self.spread)

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
            spread=self.router_spread,
            joint=self.reading == "joint",
        )

    @property
    def layers(self) -> tuple[str, ...]:
        """The names of the blocks that hold the modules."""
        middle = [f"modules.{number}" for number in range(2, len(self.modules))]
        return ("encoders", *middle, "outputs")

    def sent(self, gates: Sequence[Tensor]) -> list[Tensor]:
        """Which modules a client with these gates has, 1 = yes: [modules] for each layer; every
        encoder, and of later layers what `travel` says.
        """
        reached = modules_reached(gates)
        return reached if self.travel == "reached" else [reached[0], *modules_used(gates)[1:]]

    def slim(self, blocks: Blocks) -> tuple[Self, Blocks]:
        """A pool of the modules between the input and the prediction; the router has
        done its work.
        """
        gates = matrices(blocks["gates"]["value"], self.modules)
        numbers = [mask.nonzero().flatten() for mask in modules_used(gates)]
        # a layer cannot be without modules
        kept = [where if len(where) else where.new_zeros(1) for where in numbers]
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

    def conclusions(self, portraits: Mapping[str, Mapping[int, Sequence[float]]]) -> list[str]:
        gates = portraits.get("gates", {}).values()
        if len(gates) < 2 or len(set(map(tuple, gates))) > 1:
            return []
        return [
            f"all {len(gates)} clients share one path through the modules: nothing is personal "
            f"here; see what holds the router back on the page of FedMN"
        ]
