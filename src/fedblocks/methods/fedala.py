"""Before training, each client mixes the shared model with its own, element by element."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from torch import Tensor

from fedblocks.core.blocks import Block, Private, Shared
from fedblocks.core.description import Paper
from fedblocks.core.method import Method, View
from fedblocks.core.optimizers import SGD
from fedblocks.core.options import AtLeast, AtMost, Conflict, Help, Positive
from fedblocks.core.parts import Blocks, Filled, Params, is_statistic
from fedblocks.core.phases import Batch, Phase
from fedblocks.core.pieces import Piece
from fedblocks.core.random import uniform
from fedblocks.core.top_layers import linear_in_use, top_piece


@dataclass(frozen=True, eq=False)
class FedALA(Method):
    """Adaptive local aggregation: weights between the shared and the local model are
    learnt (Zhang et al., 2023).
    """

    paper: ClassVar[Paper] = Paper(
        "FedALA: Adaptive Local Aggregation for Personalized Federated Learning",
        "Zhang et al.",
        2023,
        "AAAI",
    )

    top: Annotated[
        int,
        AtLeast(1),
        Help(
            "p: linear layers, counted from the output, that are mixed; the others are overwritten"
        ),
    ] = 1
    mixing_lr: Annotated[float, AtLeast(0), Help("eta: of the mixing weights", usual="1")] = 1.0
    mixing_epochs: Annotated[int, AtLeast(0), Help("of learning them, in every round")] = 1
    share: Annotated[
        float,
        Positive(),
        AtMost(1),
        Help(
            "s: of the training examples on which they are learnt, drawn anew in every round",
            usual="0.8",
        ),
    ] = 0.8

    def conflicts(self) -> list[Conflict]:
        layers = len(linear_in_use(self.net))
        if self.top > layers:
            return [
                Conflict(
                    "top",
                    f"the net uses {layers} linear layers",
                    f"choose from 1 to {layers}" if layers else "use a net with a linear layer",
                    with_net=True,
                )
            ]
        return []

    def blocks(self) -> dict[str, Block]:
        return {
            # what is sent is mixed in; what was trained is uploaded
            "model": Shared(self.net.whole, of="local"),
            "local": Private(self.net.whole),
            "mixing": Private(Filled(self.mixed, 1.0)),  # 1: the shared model, 0: the client's own
        }

    @property
    def mixed(self) -> Piece:
        """The top layers' parameters, with what stands between them."""
        return top_piece(self.net, self.top)

    def phases(self) -> list[Phase]:
        train = Phase((self.step("local"),), self.epochs, begin=self.initialise)
        return [self.learn_mixing(), train]

    def adaptation(self) -> list[Phase]:
        return [self.learn_mixing(), Phase((self.step("local"),), epochs=0, begin=self.initialise)]

    def learn_mixing(self) -> Phase:
        step = self.step(
            "mixing",
            loss=self.mixing_loss,
            lr=self.mixing_lr,
            optimizer=SGD(),
            project=within_bounds,
        )
        return Phase((step,), self.mixing_epochs)

    def initialise(self, blocks: Blocks) -> Blocks:
        return {**blocks, "local": self.mixture(blocks)}

    def mixture(self, blocks: Blocks) -> Params:
        """w_i + (w - w_i) M on the top layers, w below."""
        shared, local, mixing = blocks["model"], blocks["local"], blocks["mixing"]
        top = {name: local[name] + (shared[name] - local[name]) * m for name, m in mixing.items()}
        if self.statistics != "local":
            return {**shared, **top}
        own = {name: value for name, value in local.items() if is_statistic(name)}
        return {**shared, **own, **top}

    def mixing_loss(self, blocks: Blocks, batch: Batch) -> Tensor:
        """The loss of the mixture on the examples that were drawn for this round."""
        draw = uniform(batch.client.key, tuple(batch.client.rows.shape[-1:]))[batch.index]
        drawn = batch.mask * (draw < self.share).to(batch.mask.dtype)
        outputs = self.net(self.mixture(blocks), batch.x)
        losses, labels = batch.task.summed_losses(outputs, batch.y)
        return (losses * drawn).sum() / (labels * drawn).sum().clamp(min=1)

    def predict(self, blocks: Blocks, x: Tensor) -> Tensor:
        return self.net(blocks["local"], x)

    def predict_shared(self, blocks: Blocks, x: Tensor) -> Tensor:
        return self.net(blocks["model"], x)

    def views(self) -> dict[str, View]:
        return {"personal": self.predict, "shared": self.predict_shared}

    def degenerate(self) -> list[str]:
        still = self.mixing_epochs == 0 or self.mixing_lr == 0
        return ["mixing weights that never move make FedALA FedAvg"] if still else []


def within_bounds(blocks: Blocks) -> Blocks:
    """Mixing weights between 0 and 1."""
    return {"mixing": {name: m.clamp(0, 1) for name, m in blocks["mixing"].items()}}
