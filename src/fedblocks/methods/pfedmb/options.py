"""What can be chosen of pFedMB, and which layers of a net have branches."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any, ClassVar, Literal

from fedblocks.core.errors import nearest
from fedblocks.core.method import Method
from fedblocks.core.optimizers import SGD
from fedblocks.core.options import AtLeast, Below, Conflict, Help, Length, Positive
from fedblocks.core.pieces import Piece
from fedblocks.core.schedules import Schedule
from fedblocks.methods._common.draws import drawn, never_apart
from fedblocks.methods._common.mixtures import MixtureStart, StepScale


@dataclass(frozen=True, eq=False)
class BranchOptions(Method):
    """The options of pFedMB."""

    later_options: ClassVar[Mapping[str, Any]] = {
        "start": "independent",
        "lr_scale": "printed",
    }

    branches: Annotated[int, AtLeast(1), Help("B, of every linear layer", usual="2 to 10")] = 3
    start: MixtureStart = "common"
    lr_scale: StepScale = "mixture"
    alpha_lr: Annotated[
        float | Schedule,
        Positive(),
        Help("of the branch weights (of their logits, with softmax)", usual="0.3"),
    ] = 0.3
    alpha_epochs: Annotated[
        int | None, AtLeast(0), Help("of the branch weights; default: the local epochs")
    ] = None
    alpha_param: Annotated[
        Literal["softmax", "projection"],
        Help(
            'how weights stay on the simplex: "softmax" of free logits, or "projection" after '
            "each step"
        ),
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
        tuple[str, ...] | None,
        Length(1),
        Help("layers that have branches; default: every linear layer"),
    ] = None
    finetune: Annotated[
        Literal["alpha+W", "W", "none"],
        Help('before an evaluation: "alpha+W" (one local training), "W" or "none"'),
    ] = "alpha+W"
    drop_below: Annotated[
        float,
        AtLeast(0),
        Below(1),
        Help(
            "branches of smaller weight are left out of the model that predicts",
            usual="0, which keeps all",
        ),
    ] = 0.0
    compressed_upload: Annotated[
        bool, Help("one change a layer instead of all its branches; exact, for SGD only")
    ] = False

    def conflicts(self) -> list[Conflict]:
        conflicts: list[Conflict] = []
        if self.branched is None and not self.net.layers:
            fix = "use a net with one, such as nn.Linear, or another method"
            why = "the net has no linear layer, and only these have branches"
            conflicts.append(Conflict("branched", why, fix, with_net=True))
        for path in self.branched or ():
            if path not in self.net.layers:
                why = f'the net has no linear layer "{path}"'
                fix = nearest(path, self.net.layers)
                conflicts.append(Conflict("branched", why, fix, with_net=True))
        if self.compressed_upload and (self.keep_optimizer or not isinstance(self.optimizer, SGD)):
            other = "keep_optimizer" if self.keep_optimizer else type(self.optimizer).__name__
            fix = "use SGD that starts anew in every round"
            conflicts.append(Conflict("compressed_upload", f"is not exact with {other}", fix))
        if self.compressed_upload and getattr(self.optimizer, "decay", None) is not None:
            why, fix = "is exact only if all tensors decay alike", "leave out the optimizer's decay"
            conflicts.append(Conflict("compressed_upload", why, fix))
        return conflicts

    def degenerate(self) -> list[str]:
        if self.branches == 1:
            return ["branches = 1 makes pFedMB FedAvg"]
        names = {name for piece in self.layers.values() for name in piece.names}
        return [never_apart("pFedMB", "branches")] if not names & drawn(self.net) else []

    @cached_property
    def layers(self) -> dict[str, Piece]:
        """The layers that have branches, by the names of their blocks."""
        paths = self.net.layers if self.branched is None else self.branched
        layers = self.net.layers.items()
        return {f"layers.{path}": piece for path, piece in layers if path in paths}

    @cached_property
    def rest(self) -> Piece:
        """What has no branches: scales, norms, statistics, and other layers."""
        branched = {name for piece in self.layers.values() for name in piece.names}
        return self.net.piece(set(self.net.names) - branched)
