"""A network on the server makes every client's model from a few numbers about the client."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Annotated, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import vjp

from fedblocks.core.arithmetic import flat
from fedblocks.core.blocks import Block, Generated, Private, Read, ServerOnly, Shared
from fedblocks.core.description import Paper
from fedblocks.core.method import Method, join
from fedblocks.core.optimizers import SGD, Kept
from fedblocks.core.options import AtLeast, Help, Positive
from fedblocks.core.parts import Blocks, Filled, Params, Sized, is_statistic
from fedblocks.core.phases import Phase
from fedblocks.core.server import Cohort
from fedblocks.core.uploads import Uploads

EMBEDDINGS = "embeddings"  # [population, embedding], beside the layers


@dataclass(frozen=True, eq=False)
class PFedHN(Method):
    """A hypernetwork learns from how clients change the models that it made for them
    (Shamsian et al., 2021).
    """

    paper: ClassVar[Paper] = Paper(
        "Personalized Federated Learning using Hypernetworks", "Shamsian et al.", 2021, "ICML"
    )

    embedding: Annotated[
        int | None,
        AtLeast(1),
        Help("numbers about each client; default: 1 + a quarter of the number of clients"),
    ] = None
    hidden: Annotated[
        int, AtLeast(1), Help("width of the hypernetwork's hidden layers", usual="100")
    ] = 100
    hidden_layers: Annotated[int, AtLeast(1), Help("of the hypernetwork", usual="1 to 3")] = 3
    server_lr: Annotated[
        float, Positive(), Help("of hypernetwork and embeddings", usual="0.01")
    ] = 0.01
    server_momentum: Annotated[Kept, Help("of hypernetwork and embeddings", usual="0.9")] = 0.9
    server_decay: Annotated[
        float, AtLeast(0), Help("weight decay of hypernetwork and embeddings", usual="0.001")
    ] = 1e-3
    clip: Annotated[
        float, Positive(), Help("the longest gradient of hypernetwork and embeddings", usual="50")
    ] = 50.0
    local_steps: Annotated[
        int | None,
        AtLeast(1),
        Help("batches of a round; default: the local epochs", usual="50, the paper's"),
    ] = None

    def blocks(self) -> dict[str, Block]:
        weights = self.net.piece(self.shapes)
        statistics = self.net.piece(n for n in self.net.names if is_statistic(n))
        home = Private if self.statistics == "local" else Shared
        rest: dict[str, Block] = {"statistics": home(statistics)} if statistics.names else {}
        return {
            # made anew for each client; what is kept of it is read by nobody
            "model": Shared(weights),
            **rest,
            "hypernetwork": ServerOnly(Sized(self.part)),
            "velocity": ServerOnly(Sized(lambda clients: Filled(self.part(clients), 0.0))),
        }

    @cached_property
    def shapes(self) -> dict[str, torch.Size]:
        return {name: p.shape for name, p in self.net.template.named_parameters()}

    def part(self, clients: int) -> Hypernetwork:
        inputs = 1 + clients // 4 if self.embedding is None else self.embedding
        outputs = sum(map(math.prod, self.shapes.values()))
        widths = (inputs, *[self.hidden] * self.hidden_layers, outputs)
        return Hypernetwork(clients, widths, self.net.dtype)

    def reads(self, server: Blocks, cohort: Cohort) -> dict[str, Read]:
        return {"model": Generated(self.cut(generate(server["hypernetwork"], cohort.ids)))}

    def cut(self, rows: Tensor) -> Params:
        """[clients, parameters] -> the net's tensors."""
        pieces = torch.split(rows, [math.prod(shape) for shape in self.shapes.values()], 1)
        return {
            name: p.reshape(len(rows), *shape)
            for p, (name, shape) in zip(pieces, self.shapes.items(), strict=True)
        }

    def predict(self, blocks: Blocks, x: Tensor) -> Tensor:
        return self.net(join(blocks["model"], blocks.get("statistics", {})), x)

    def phases(self) -> list[Phase]:
        names = [name for name in self.blocks() if name in ("model", "statistics")]
        return [Phase((self.step(*names),), self.epochs, steps=self.local_steps)]

    def joining(self) -> list[Phase]:
        # nobody has learnt its numbers yet: it trains the model that they happen to give
        return self.phases()

    def single_uploads(self, before: Blocks, cohort: Cohort) -> Collection[str]:
        return ("model",)

    def conclude(self, server: Blocks, before: Blocks, uploads: Uploads, cohort: Cohort) -> Blocks:
        """One step of SGD, the clients' changes taken for the gradient of what the
        hypernetwork made.
        """
        upload = uploads["model"]
        old = before["hypernetwork"]
        wrote = upload.weights > 0  # [clients, 1]
        models, back = vjp(lambda params: generate(params, upload.ids), old)  # type: ignore[misc]
        trained = flat({name: upload.copies[name] for name in self.shapes})
        (slopes,) = back(torch.where(wrote, models - trained, 0) / wrote.sum())
        params = [v.clone() for v in old.values()]
        grads = self.shorten([slopes[k] for k in old])
        velocity = [before["velocity"][k].clone() for k in old]
        sgd = SGD(momentum=self.server_momentum, weight_decay=self.server_decay)
        sgd.step(params, grads, {"velocity": velocity}, self.server_lr, 1)
        moved = {"hypernetwork": dict(zip(old, params)), "velocity": dict(zip(old, velocity))}
        return server | {name: _unless(wrote.any(), moved[name], before[name]) for name in moved}

    def shorten(self, grads: list[Tensor]) -> list[Tensor]:
        """The gradients, together at most as long as `clip`."""
        length = torch.stack([g.square().sum() for g in grads]).sum().sqrt()
        return [g * (self.clip / length.clamp(min=self.clip)) for g in grads]


def _unless(anybody: Tensor, new: Params, old: Params) -> Params:
    """The old values if nobody wrote."""
    return {k: torch.where(anybody, v, old[k]) for k, v in new.items()}


@dataclass(frozen=True, eq=False)
class Hypernetwork:
    """A perceptron from a client's embedding to all parameters of its model, and the embeddings."""

    clients: int
    widths: tuple[int, ...]
    dtype: torch.dtype

    def init(self, seed: int) -> Params:
        draw = torch.Generator().manual_seed(seed)
        shape = (self.clients, self.widths[0])
        params = {EMBEDDINGS: torch.randn(shape, generator=draw, dtype=self.dtype)}
        for layer, (inputs, outputs) in enumerate(pairwise(self.widths)):
            bound = inputs**-0.5  # as torch's dense layers start
            for name, size in (("weight", (outputs, inputs)), ("bias", (outputs,))):
                numbers = torch.rand(size, generator=draw, dtype=self.dtype)
                params[f"{layer}.{name}"] = (2 * numbers - 1) * bound
        return params


def generate(params: Params, ids: Tensor) -> Tensor:
    """The models of some clients: [clients, parameters]."""
    last = len(params) // 2 - 1  # embeddings, and a weight and a bias for each layer
    h = params[EMBEDDINGS][ids]
    for layer in range(last + 1):
        h = F.linear(h, params[f"{layer}.weight"], params[f"{layer}.bias"])
        h = h if layer == last else F.relu(h)
    return h
