"""What must hold of a net for it to train here as in plain PyTorch: a sentence each, and how it is
found out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn

from fedblocks.core.net import Net
from fedblocks.core.outside_modules import seeded
from fedblocks.core.trees import is_close
from fedblocks.engines.net_check.company import DEPENDS
from fedblocks.engines.net_check.held_values import held_values
from fedblocks.engines.net_check.inspection import loose_tensors
from fedblocks.engines.net_check.own_state import left_behind
from fedblocks.engines.net_check.passes import computes_anew, uses_others, writes_to_inputs
from fedblocks.engines.net_check.swallowed import swallows_errors
from fedblocks.engines.net_check.trial import BATCH, NetTrial
from fedblocks.engines.steadiness import other_companies
from fedblocks.layers.replacement import BatchNorm

SEEDED = "the start depends on the seed alone"
REGISTERED = "what is drawn is a parameter or a buffer"
NOTHING_LEFT = "a forward pass leaves nothing behind"
ONCE = "a backward pass computes nothing of the forward pass anew"
INPUTS_KEPT = "a forward pass leaves its inputs as they are"
TRAINS = "three clients train as in plain PyTorch"
EVALUATES = "they are evaluated as in plain PyTorch"
OWN = "its outputs depend on its own parameters alone"
_SOLVED = 1e-6  # relative differences of a start: solvers may add up in another order each time
_DRAWN = '"{}" is drawn, and neither a parameter nor a buffer'
Found = Callable[[NetTrial, str], str]  # what is wrong with a net on an engine; empty: nothing


def first_line(error: BaseException) -> str:
    """The first sentence of an error."""
    return (str(error).splitlines() or [type(error).__name__])[0].partition(". ")[0]


def _starts(trial: NetTrial, engine: str) -> str:
    return unlike_starts(trial.net)


def unlike_starts(net: Net) -> str:
    """What differs between two starts by one seed."""
    one, other = net.init(5), net.init(5)
    return _first(
        f'"{name}" was drawn otherwise'
        for name in one
        if not is_close(one[name], other[name], _SOLVED)
    )


def _trains(trial: NetTrial, engine: str) -> str:
    return _compare(trial, trial.train(engine), trial.wanted())


def _evaluates(trial: NetTrial, engine: str) -> str:
    return _unlike_losses(trial, trial.losses(engine), trial.wanted_losses())


def unlike_first_steps(trial: NetTrial, engine: str) -> tuple[str, str]:
    """What does not hold of a large net, and why: clients with other weights each are evaluated
    before anybody trains, and then one of them takes a few steps. Empty: it is as in plain PyTorch.
    """
    if why := _unlike_losses(trial, trial.first_losses(engine), trial.wanted_first_losses()):
        return EVALUATES, why
    why = _compare(trial, trial.train(engine, 1), [trial.trained(0)[1]])
    return (TRAINS, why) if why else ("", "")


def _unlike_losses(trial: NetTrial, ours: list[float], theirs: list[float]) -> str:
    pairs = zip(ours, theirs, strict=True)
    worst = max(abs(ours - theirs) / (1 + abs(theirs)) for ours, theirs in pairs)
    return "" if worst <= trial.tolerance else f"the losses differ by {worst:.1e}"


def _repeats(trial: NetTrial, engine: str) -> str:
    """Client 0 again, after the others: whatever they left in the module would show."""
    return _compare(trial, trial.train(engine, 1), trial.train(engine)[:1])


def _isolates(trial: NetTrial, engine: str) -> str:
    beside_others = trial.with_other_data().train(engine, 2)
    return _compare(trial, beside_others[:1], trial.train(engine)[:1])


def _registers(trial: NetTrial, engine: str) -> str:
    """A tensor that is drawn and not registered: no step trains it, no seed draws it anew and no
    run stores it.
    """
    draws = []
    for seed in (1, 2):
        with seeded(seed):
            draws.append(loose_tensors(trial.net.make()))
    for name, value in draws[0].items():
        again = draws[1].get(name)
        if isinstance(value, nn.Parameter):
            return f'"{name}" is a parameter that no module has registered'
        if again is None or not torch.equal(value, again):
            return _DRAWN.format(name)
    return _drawn_otherwise(trial.net)


def _drawn_otherwise(net: Net) -> str:
    """A number, an array or a list that the seed decides, in an attribute or what it holds."""
    held = []
    for seed in (1, 1, 2):
        with seeded(seed):
            held.append(held_values(net.make()))
    first, again, other = held
    return _first(
        _DRAWN.format(place)
        for place, value in first.items()
        if place in other and again.get(place) == value != other[place]
    )


def _keeps_to_itself(trial: NetTrial, engine: str) -> str:
    return left_behind(trial.net, trial.starts[0], trial.x[:BATCH])


def _keeps_inputs(trial: NetTrial, engine: str) -> str:
    return writes_to_inputs(trial.net, trial.starts[0], trial.x[:BATCH])


def _computes_once(trial: NetTrial, engine: str) -> str:
    return computes_anew(trial.net, trial.starts[0], trial.x[:BATCH])


def _uses_its_own(trial: NetTrial, engine: str) -> str:
    return uses_others(trial.net, trial.starts[0], trial.x[:BATCH])


def _takes_one(trial: NetTrial, engine: str) -> str:
    """Rows of padding beside a single one would hide that the module fails without them."""
    if engine == "sequential":  # fails as plain PyTorch does, for this client alone
        return ""
    try:
        one = trial.net(trial.starts[0], trial.x[:1])
    except Exception as error:
        return f"it fails on a batch of one example ({first_line(error)})"
    wanted = [1, *trial.y.shape[1:], trial.classes]
    return "" if list(one.shape) == wanted else f"of one example it makes {list(one.shape)}"


def _answers_each(trial: NetTrial, engine: str) -> str:
    """What stands beside an example is another in a stack, where padding is."""
    if engine == "sequential" or any(map(is_over_batch, trial.module.modules())):
        return ""
    x = trial.x[:BATCH]
    usual = trial.net(trial.starts[0], x)
    for rows in other_companies(x):
        outputs = trial.net(trial.starts[0], x[rows])
        if _difference(outputs, usual[rows]) > trial.tolerance:
            return DEPENDS
    return ""


def _fails_alone(trial: NetTrial, engine: str) -> str:
    if engine == "sequential":
        return ""
    return swallows_errors(trial.net, trial.starts[0], trial.x[:BATCH])


def is_over_batch(layer: nn.Module) -> bool:
    """Whether a layer is one over the batch in evaluation, and leaves padding out of it."""
    return isinstance(layer, BatchNorm) and layer.running_mean is None


PROPERTIES: dict[str, Found] = {
    SEEDED: _starts,
    REGISTERED: _registers,
    NOTHING_LEFT: _keeps_to_itself,
    INPUTS_KEPT: _keeps_inputs,
    ONCE: _computes_once,
    OWN: _uses_its_own,
    TRAINS: _trains,
    EVALUATES: _evaluates,
    "an example can be evaluated alone": _takes_one,
    "it is evaluated alone as beside others": _answers_each,
    "what fails for one client fails for it alone": _fails_alone,
    "a client trains alike before and after others": _repeats,
    "another client's data change nothing": _isolates,
}

# these are asked of the module itself, whichever engine runs it
OF_THE_NET = (SEEDED, REGISTERED, NOTHING_LEFT, INPUTS_KEPT, ONCE, OWN)


def _compare(
    trial: NetTrial, ours: list[dict[str, Tensor]], theirs: list[dict[str, Tensor]]
) -> str:
    """The tensor that differs most, of all clients; empty: none does."""
    differences = {
        (name, client): _difference(value, wanted[name])
        for client, (tensors, wanted) in enumerate(zip(ours, theirs, strict=True))
        for name, value in tensors.items()
        if value.numel()
    }
    (name, client), worst = max(differences.items(), key=lambda item: item[1])
    return "" if worst <= trial.tolerance else f'"{name}" of client {client} differs by {worst:.1e}'


def _difference(value: Tensor, wanted: Tensor) -> float:
    relative = (value - wanted).abs() / (1 + wanted.abs())
    return float(relative.nan_to_num(torch.inf).max())


def _first(reasons: Iterator[str]) -> str:
    return next(reasons, "")
