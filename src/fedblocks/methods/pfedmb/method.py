"""Every layer is a client's own mixture of shared branches."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

import torch
from torch import Tensor

from fedblocks.core.arithmetic import mix
from fedblocks.core.blocks import Block, Fresh, Pool, Private, Shared
from fedblocks.core.client import Client
from fedblocks.core.description import Paper, by_options
from fedblocks.core.errors import nearest
from fedblocks.core.method import Method, join
from fedblocks.core.net import Piece
from fedblocks.core.optimizers import SGD
from fedblocks.core.options import AtLeast, Below, Conflict, Help, Length, Positive
from fedblocks.core.parts import Blocks, Params, Value
from fedblocks.core.phases import Batch, Phase
from fedblocks.core.schedules import Schedule
from fedblocks.methods.pfedmb.branches import common_change, grown, on_simplex, without_small

if TYPE_CHECKING:
    from fedblocks.core.aggregate import Uploads
    from fedblocks.core.server import Cohort

NEGLIGIBLE = 1e-12  # a branch that is weighted less is not written


@dataclass(frozen=True, eq=False)
class PFedMB(Method):
    """Layers of shared branches, averaged by how much clients rely on them (Mori et al., 2022)."""

    paper: ClassVar[Paper] = Paper(
        "Personalized Federated Learning with Multi-branch Architecture", "Mori et al.", 2022, "arXiv 2211.07931"
    )
    in_steps_only: ClassVar[tuple[str, ...]] = ("alpha_lr",)
    weight_label: ClassVar[str | Mapping[str, str]] = by_options(
        "n x alpha", lambda method: "n x alpha" if method.weighs_by_alpha else "n"
    )

    branches: Annotated[int, AtLeast(1), Help("B, of every linear layer", usual="2 to 10")] = 3
    alpha_lr: Annotated[
        float | Schedule, Positive(),
        Help("of the branch weights (of their logits, with softmax)", usual="0.3"),
    ] = 0.3
    alpha_epochs: Annotated[
        int | None, AtLeast(0), Help("of the branch weights; default: the local epochs")
    ] = None
    alpha_param: Annotated[
        Literal["softmax", "projection"],
        Help('how weights stay on the simplex: "softmax" of free logits, or "projection" after each step'),
    ] = "softmax"
    alpha_scope: Annotated[
        Literal["layer", "model"],
        Help('weights for each "layer", or one set for the whole "model"'),
    ] = "layer"
    averaging: Annotated[
        Literal["alpha", "plain"],
        Help('branches by n x "alpha", or "plain" by n (the ablation of the paper)'),
    ] = "alpha"
    branched: Annotated[
        tuple[str, ...] | None, Length(1),
        Help("layers that have branches; default: every linear layer"),
    ] = None
    finetune: Annotated[
        Literal["alpha+W", "W", "none"],
        Help('before an evaluation: "alpha+W" (one local training), "W" or "none"'),
    ] = "alpha+W"
    drop_below: Annotated[
        float, AtLeast(0), Below(1),
        Help(
            "branches of smaller weight are left out of the model that predicts",
            usual="0, which keeps all",
        ),
    ] = 0.0
    compressed_upload: Annotated[
        bool, Help("one change a layer instead of all its branches; exact, for SGD only")
    ] = False

    def conflicts(self) -> list[Conflict]:
        found: list[Conflict] = []
        for path in self.branched or ():
            if path not in self.net.layers:
                why, known = f'the net has no linear layer "{path}"', nearest(path, self.net.layers)
                found.append(Conflict("branched", why, known, with_net=True))
        if self.compressed_upload and (self.keep_optimizer or not isinstance(self.optimizer, SGD)):
            other = "keep_optimizer" if self.keep_optimizer else type(self.optimizer).__name__
            fix = "use SGD that starts anew in every round"
            found.append(Conflict("compressed_upload", f"is not exact with {other}", fix))
        return found

    def blocks(self) -> dict[str, Block]:
        sent: dict[str, Block] = {
            name: Pool(piece, size=self.branches, of=f"change of {name}" if self.compressed_upload else None)
            for name, piece in self.layers.items()
        }
        rest: dict[str, Block] = {"rest": Shared(self.rest)} if self.rest.names else {}
        rows = len(sent) if self.alpha_scope == "layer" else 1
        even = 0.0 if self.alpha_param == "softmax" else 1 / self.branches
        alpha = torch.full((rows, self.branches), even, dtype=self.net.dtype)  # [layers or 1, branches]
        return {**sent, **rest, "alpha": Private(Value(alpha)), **self._for_compression()}

    def _for_compression(self) -> dict[str, Block]:
        if not self.compressed_upload:
            return {}
        one = Value(torch.ones(1, dtype=self.net.dtype))
        decay: dict[str, Block] = {"decay": Shared(one, of="decayed"), "decayed": Fresh(one)} if self._decays else {}
        return {**{f"change of {name}": Fresh() for name in self.layers}, **decay}

    def alpha(self, blocks: Blocks) -> dict[str, Tensor]:
        """The weight of every branch of every layer: name -> [branches], adding up to 1."""
        value = blocks["alpha"]["value"]
        rows = torch.softmax(value, -1) if self.alpha_param == "softmax" else value
        return dict(zip(self.layers, rows.expand(len(self.layers), -1), strict=True))

    def merged(self, blocks: Blocks, alpha: dict[str, Tensor]) -> Params:
        """A client's own plain net: every layer the mixture of its branches."""
        return join(*(mix(blocks[name], weights) for name, weights in alpha.items()), blocks.get("rest", {}))

    def predict(self, blocks: Blocks, x: Tensor) -> Tensor:
        kept = {name: without_small(weights, self.drop_below) for name, weights in self.alpha(blocks).items()}
        return self.net(self.merged(blocks, kept), x)

    def loss(self, blocks: Blocks, batch: Batch) -> Tensor:
        return batch.loss(self.net(self.merged(blocks, self.alpha(blocks)), batch.x))

    def phases(self) -> list[Phase]:
        return [self._learn_alpha(), self._learn_weights()]

    def adaptation(self) -> list[Phase]:
        chosen = {"alpha+W": self.phases(), "W": [self._learn_weights()], "none": []}
        return chosen[self.finetune]

    def joining(self) -> list[Phase]:  # whatever is fine-tuned, a new client has to find its branches
        return [self._learn_alpha()] if self.finetune == "none" else self.phases()

    def _learn_alpha(self) -> Phase:
        project = on_simplex if self.alpha_param == "projection" else None
        step = self.step("alpha", lr=self.alpha_lr, optimizer=SGD(), project=project)
        return Phase((step,), self.epochs if self.alpha_epochs is None else self.alpha_epochs)

    def _learn_weights(self) -> Phase:
        others = [name for name in ("rest", "decayed") if name in self.blocks()]
        return Phase((self.step(*self.layers, *others),), self.epochs)

    @cached_property
    def layers(self) -> dict[str, Piece]:
        """The layers that have branches, by the names of their blocks."""
        found = self.net.layers.items()
        return {f"layers.{path}": piece for path, piece in found if self.branched is None or path in self.branched}

    @cached_property
    def rest(self) -> Piece:
        """What has no branches: scales, norms, statistics, and other layers."""
        return self.net.piece(set(self.net.names) - {name for piece in self.layers.values() for name in piece.names})

    @property
    def weighs_by_alpha(self) -> bool:
        """Whether branches are uploaded with their weights; a compressed change cannot be read without them."""
        return self.averaging == "alpha" or self.compressed_upload

    @property
    def _decays(self) -> bool:
        return isinstance(self.optimizer, SGD) and self.optimizer.weight_decay > 0

    def finish(self, blocks: Blocks, start: Blocks, client: Client) -> Blocks:
        """All branches of a layer moved as W_b <- s W_b + alpha_b D; what is sent is D and, by the weights, alpha."""
        if not self.compressed_upload:
            return blocks
        kept = blocks["decayed"]["value"] if self._decays else torch.ones_like(client.size)[None]  # s, [1]
        alpha = self.alpha(blocks)
        return blocks | {f"change of {n}": common_change(blocks[n], start[n], alpha[n], kept) for n in self.layers}

    def writes(self, blocks: Blocks, client: Client) -> dict[str, Tensor]:
        if not self.weighs_by_alpha:
            return {}
        alpha = self.alpha(blocks)
        return {n: client.size * torch.where(weights > NEGLIGIBLE, weights, 0) for n, weights in alpha.items()}

    def conclude(self, server: Blocks, before: Blocks, uploads: Uploads, cohort: Cohort) -> Blocks:
        if not self.compressed_upload or not len(cohort):
            return server
        sizes = cohort.sizes[:, None]
        kept = uploads["decay"].copies["value"].double() if self._decays else torch.ones_like(sizes)  # s, [clients, 1]
        rebuilt: Blocks = {}
        for name in self.layers:
            alpha = uploads[name].weights / sizes.clamp(min=1)  # [clients, branches]
            weights = uploads[name].weights if self.averaging == "alpha" else sizes.expand_as(alpha)
            rebuilt[name] = grown(before[name], uploads[name].copies, alpha, kept, weights)
        return {**server, **rebuilt}

    def degenerate(self) -> list[str]:
        return ["branches = 1 makes pFedMB FedAvg"] if self.branches == 1 else []
