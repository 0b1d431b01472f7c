"""FedMN: a router that sees a client's data chooses its net from a shared pool."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from fedblocks.core.blocks import Block, Fresh, Pool, Shared
from fedblocks.core.client import Client
from fedblocks.core.description import Paper
from fedblocks.core.parts import Blocks
from fedblocks.core.phases import Batch, Phase
from fedblocks.core.server import Cohort
from fedblocks.core.starts import Alike, Independent
from fedblocks.core.uploads import Uploads
from fedblocks.methods._common.membership import group_clients
from fedblocks.methods._common.mixtures import scale_gradient, steps_of_one_net
from fedblocks.methods.fedmn.gates import matrices, modules_used, shares
from fedblocks.methods.fedmn.modules import mix, run_modules, scale
from fedblocks.methods.fedmn.router import Moments, in_units_of
from fedblocks.methods.fedmn.routing import Routing
from fedblocks.methods.fedmn.warm_start import fit_head, module_changes, path_logits


@dataclass(frozen=True, eq=False)
class FedMN(Routing):
    """Federated modular network: hard gates on the edges of a pool, drawn from a
    routing net (Wang et al., 2022).
    """

    paper: ClassVar[Paper] = Paper(
        "Personalized Federated Learning via Heterogeneous Modular Networks",
        "Wang et al.",
        2022,
        "ICDM",
    )

    def blocks(self) -> dict[str, Block]:
        parts = zip(self.layers, self.path.stages, self.modules, strict=True)
        start = Alike() if self.module_start == "alike" else Independent()
        pool = {
            name: Pool(part, count, on_request=name != "encoders", start=start)
            for name, part, count in parts
        }
        net = self.router.net
        # a router that nobody trains is the same for all without being sent
        blocks: dict[str, Block] = {
            "router": Fresh(net.whole) if self.train_router == "nothing" else Shared(net.whole)
        }
        if self.router_scale == "federation":
            blocks["moments"] = Shared(Moments(self.router.width, net.dtype))
        return {**blocks, **pool, "gates": Fresh()}

    # 1. receive the router, draw the gates V from Pi(D)
    # 2. tell the server which modules these use, receive those

    def wants(self, blocks: Blocks, client: Client) -> dict[str, Tensor]:
        gates = matrices(self.decide(blocks, client)["value"], self.modules)
        return dict(zip(self.layers[1:], self.sent(gates)[1:-1], strict=True))

    # 3. train encoders, chosen modules and router under these gates

    def prepare(self, blocks: Blocks, client: Client) -> Blocks:
        return {**blocks, "gates": self.decide(blocks, client)}

    def phases(self) -> list[Phase]:
        trains = self.train_router != "nothing"
        if trains and self.router_lr is None:
            together = self.step(*self.layers, "router", rests=self.resting)
            return [Phase((together,), self.epochs)]
        # hard gates are the same in all steps, and modules alone do not ask what moves them
        loss = self.loss if self.gate_mode == "soft" else self.module_loss
        modules = self.step(*self.layers, loss=loss, rests=self.resting_modules)
        router = self.step("router", lr=self.router_lr, rests=self.resting_router)
        return [Phase((modules, router) if trains else (modules,), self.epochs)]

    def resting(self, blocks: Blocks, client: Client) -> dict[str, Tensor]:
        return {**self.resting_modules(blocks, client), **self.resting_router(blocks, client)}

    def resting_modules(self, blocks: Blocks, client: Client) -> dict[str, Tensor]:
        """Modules on no way to the prediction: [modules] for each layer."""
        used = modules_used(matrices(blocks["gates"]["value"], self.modules))
        return {name: own == 0 for name, own in zip(self.layers, used, strict=False)}

    def resting_router(self, blocks: Blocks, client: Client) -> dict[str, Tensor]:
        """Open gates are nobody's choice."""
        return {"router": blocks["gates"]["open"] > 0}

    def loss(self, blocks: Blocks, batch: Batch) -> Tensor:
        gates = self.decide_again(blocks, batch)
        return batch.loss(self.forward(self.scale_steps(blocks, gates), gates, batch.x))

    def module_loss(self, blocks: Blocks, batch: Batch) -> Tensor:
        """The loss of the personal model, for its modules alone."""
        gates = blocks["gates"]["value"]
        return batch.loss(self.forward(self.scale_steps(blocks, gates), gates, batch.x))

    def scale_steps(self, blocks: Blocks, gates: Tensor) -> Blocks:
        """The same modules, whose gradients are as large as `lr_scale` says."""
        if self.lr_scale == "printed":
            return blocks
        by_layer = matrices(gates, self.modules)
        factors = map(steps_of_one_net, shares(by_layer, self.sent(by_layer)))
        scaled = {
            name: {k: scale_gradient(v, factor) for k, v in blocks[name].items()}
            for name, factor in zip(self.layers, factors, strict=True)
        }
        return {**blocks, **scaled}

    def predict(self, blocks: Blocks, x: Tensor) -> Tensor:
        return self.forward(blocks, blocks["gates"]["value"], x)

    def forward(self, blocks: Blocks, gates: Tensor, x: Tensor) -> Tensor:
        """The logits of the net that these gates choose."""
        by_layer = matrices(gates, self.modules)
        sent = self.sent(by_layer)
        stacks = [blocks[name] for name in self.layers]
        outputs = run_modules(self.path.stages, stacks, by_layer, sent, x)
        return mix(by_layer[-1], sent[-2], outputs)[0]

    # 4. upload these, and what the router's summaries are like here; a module is averaged over
    # those who used it or, as printed, over everybody

    def finish(self, blocks: Blocks, start: Blocks, client: Client) -> Blocks:
        if self.router_scale == "none":
            return blocks
        return {**blocks, "moments": self.router.measure(blocks["router"], client)}

    def single_uploads(self, before: Blocks, cohort: Cohort) -> Collection[str]:
        is_start = self.router_start == "updates" and cohort.round == 0
        return (*self.layers, "moments") if is_start else ()

    def conclude(self, server: Blocks, before: Blocks, uploads: Uploads, cohort: Cohort) -> Blocks:
        if self.router_start == "updates" and cohort.round == 0:
            server = self.fit_router(server, before, uploads)
        everybody = cohort.sizes.sum()
        if self.normalise_blocks or everybody == 0:
            return server
        shares = {n: uploads[n].weights.sum(0) / everybody for n in self.layers[1:]}  # [modules]
        return server | {name: scale(server[name], share) for name, share in shares.items()}

    def fit_router(self, server: Blocks, before: Blocks, uploads: Uploads) -> Blocks:
        """A routing head that sends clients whose modules changed alike through the same ones."""
        heard = uploads["moments"].weights.sum(1) > 0  # [clients]
        if not bool(heard.any()):
            return server
        kept = {name: upload.keep(heard) for name, upload in uploads.items()}
        changes = module_changes(before, kept, self.layers)
        groups = group_clients(changes, kept["moments"].weights.sum(1), self.router_groups)
        moments = {name: value[0] for name, value in server["moments"].items()}
        seen = in_units_of(moments, kept["moments"].copies["mean"])  # [clients, width]
        paths = path_logits(int(groups.max()) + 1, self.modules, seen)
        weight, bias = fit_head(seen.double(), paths[groups].double())
        router = server["router"]
        head = {"gates.weight": weight.to(seen)[None], "gates.bias": bias.to(seen)[None]}
        return {**server, "router": {**router, **head}}
