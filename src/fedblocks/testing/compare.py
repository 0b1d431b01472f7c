"""What differs between two results, by how much, and where."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from fedblocks.core.parts import Blocks
from fedblocks.core.state import State
from fedblocks.engines.close_round import Report
from fedblocks.engines.round import Engine, Experiment, evaluate

Leaves = dict[str, Tensor]  # a place in words -> the tensor there

CLOSE = {torch.float64: 1e-9, torch.float32: 1e-5}  # what another order of additions may do


def state_leaves(state: State) -> Leaves:
    """Every tensor of a state."""
    leaves = {"round": torch.tensor(state.round)}
    leaves |= _leaves("server", state.server)
    for name, blocks in state.memory.items():
        leaves |= _leaves(f'memory of the rule of "{name}",', blocks)
    for client, blocks in state.private.items():
        leaves |= _leaves(f"client {client}", blocks)
    return leaves


def _leaves(where: str, blocks: Blocks) -> Leaves:
    return {
        f'{where} block "{b}", tensor "{k}"': v
        for b, block in blocks.items()
        for k, v in block.items()
    }


def judged(
    experiment: Experiment,
    state: State,
    engine: Engine,
    clients: list[int] | None = None,
    kinds: Sequence[bool] = (False, True),
) -> Leaves:
    """How all models of all clients do, for clients that took part and for clients that join."""
    who = list(range(experiment.data.clients)) if clients is None else clients
    leaves: Leaves = {}
    for joining in kinds:
        for view, scores in evaluate(experiment, state, who, engine, joining=joining).items():
            model = f'view "{view}"' + (" of a joining client" if joining else "")
            leaves |= {
                f"{model}, client {c}: correct, scored, loss": torch.tensor(s)
                for c, s in scores.items()
            }
    return leaves


def report_leaves(report: Report) -> Leaves:
    """What a round's report says, as numbers."""
    tables: dict[str, Mapping[str, Mapping[int, object]]] = {
        "bytes down": report.bytes_down,
        "bytes up": report.bytes_up,
        "scores after training": report.counts,
    }
    return {
        f'{what} "{name}", client {client}': torch.tensor(value)
        for what, table in tables.items()
        for name, row in table.items()
        for client, value in row.items()
    }


def differences(ours: Leaves, theirs: Leaves, tolerance: float = 0.0) -> list[str]:
    """One sentence for each place where two results differ; a tolerance of 0 means every bit."""
    sentences = [f"{place}: only in the first" for place in ours.keys() - theirs.keys()]
    sentences += [f"{place}: only in the second" for place in theirs.keys() - ours.keys()]
    both = [place for place in ours if place in theirs]
    unlike = [_difference(place, ours[place], theirs[place], tolerance) for place in both]
    return sentences + [sentence for sentence in unlike if sentence]


def _difference(place: str, a: Tensor, b: Tensor, tolerance: float) -> str:
    if a.shape != b.shape or a.dtype != b.dtype:
        return (
            f"{place}: {a.dtype} of shape {list(a.shape)}, not {b.dtype} of shape {list(b.shape)}"
        )
    if torch.equal(a, b):
        return ""
    gap = (a.double() - b.double()).abs()
    gap = torch.where(torch.isfinite(gap), gap, torch.inf)  # NaN equals nothing
    if tolerance and bool((gap <= tolerance * (1 + b.double().abs())).all()):
        return ""
    worst = int(gap.argmax())
    at = [int(i) for i in np.unravel_index(worst, gap.shape)] if gap.dim() else []
    values = f"{a.flatten()[worst].item():.6g} instead of {b.flatten()[worst].item():.6g}"
    return f"{place}: differs by up to {gap.max().item():.2g}, at {at}: {values}"


def close(experiment: Experiment) -> float:
    """How far two right answers may lie apart in this setting's precision."""
    return max(CLOSE.get(method.net.dtype, 1e-5) for method in experiment.methods.values())


def copy_leaves(state: State) -> Leaves:
    """The tensors of a state as they are now."""
    return {place: value.clone() for place, value in state_leaves(state).items()}
