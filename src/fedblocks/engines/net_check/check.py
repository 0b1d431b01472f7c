"""Runs a net on a few examples of three clients, on both engines and in plain PyTorch,
and compares.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Hashable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from fedblocks.core.errors import NetError, UserError
from fedblocks.core.net import Net
from fedblocks.engines.net_check.report import ENGINES, Finding, NetReport
from fedblocks.engines.net_check.trial import NetTrial, examples_for
from fedblocks.layers.guard import needs_guard

MOST = 1_000_000  # parameters of a net that is checked by itself when a run starts
EXAMPLES = 21  # as many as the three clients have
Found = Callable[[NetTrial, str], str]  # what is wrong with a net on an engine; empty: nothing

# by the net's code: the same net is made anew for every run
_reports: dict[Hashable, NetReport] = {}


def check_net(net: Net, x: Tensor | None = None, y: Tensor | None = None) -> NetReport:
    """Whether a net trains here as its module does in plain PyTorch, by running both on a few
    examples.

    `x` are some inputs and `y` their labels; without them, they are drawn as `input_shape` and the
    logits say.
    """
    inputs = examples_for(net) if x is None else x
    key = (*code_of(net.template), tuple(inputs.shape[1:]), inputs.dtype, net.dtype)
    if key not in _reports:
        _reports[key] = _check(net, inputs, y)
    return _reports[key]


def check_before_run(net: Net, data: Tensor, mapped: bool) -> str:
    """Refuse a user's module that would give wrong numbers in a run; what is to be known of
    another, or nothing.

    `mapped` asks for the engine that maps clients; else a net that cannot be mapped is only kept
    from it. Nets made of torch's layers and ours alone need no check.
    """
    name = type(net.template).__name__
    if not needs_guard(net.template, net.constant_names):
        return ""
    if net.size() > MOST:
        why = f"it has more than {MOST:,} parameters"
        return f"the net {name} was not checked against plain PyTorch: {why}"
    report = _report_on(net, data)
    report.require("vectorised" if mapped else "sequential")
    if report.unclear:
        return f"the net {name} could not be checked against plain PyTorch: {report.unclear}"
    if "vectorised" in report.engines or net.unmappable:
        return ""
    net.unmappable.append(name)
    return f"the net {name} runs one client after another: {report.why_not('vectorised')}"


def _report_on(net: Net, data: Tensor) -> NetReport:
    """A report on numbers of usual size, or on those of the data where the module
    cannot take such.
    """
    rows = data[:EXAMPLES].cpu()
    if not rows.is_floating_point():
        return check_net(net, rows)
    draw = torch.Generator().manual_seed(0)
    report = check_net(net, torch.randn((EXAMPLES, *rows.shape[1:]), generator=draw))
    return check_net(net, rows) if report.unclear else report


def _check(net: Net, x: Tensor, y: Tensor | None) -> NetReport:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of torch, about slow rules
        try:
            return _compare_all(net, x.cpu(), None if y is None else y.cpu())
        except UserError as error:
            return NetReport(refusal=error.message, fix=error.fix)
        except (RuntimeError, ValueError, TypeError, IndexError) as error:
            refusal = f"the module cannot take inputs of shape {list(x.shape[1:])}: {_line(error)}"
            return NetReport(refusal=refusal, fix="try it on a few examples in plain PyTorch")


def _compare_all(net: Net, x: Tensor, y: Tensor | None) -> NetReport:
    trials = {engine: NetTrial.of(net, x, y) for engine in ENGINES}  # each has its own module
    if not trials["sequential"].is_finite():
        return NetReport(unclear="in plain PyTorch, too, it ends in numbers that are not finite")
    findings = [Finding(says, _wrong(trials, find)) for says, find in _PROPERTIES.items()]
    return NetReport(tuple(findings))


def _wrong(trials: Mapping[str, NetTrial], find: Found) -> Mapping[str, str]:
    reasons = {engine: _reason(trial, engine, find) for engine, trial in trials.items()}
    return {engine: reason for engine, reason in reasons.items() if reason}


def _reason(trial: NetTrial, engine: str, find: Found) -> str:
    try:
        return find(trial, engine)
    except NetError:
        raise
    except (RuntimeError, ValueError, TypeError, IndexError, UserError) as error:
        if engine == "sequential" and not isinstance(error, UserError):
            raise NetError(
                f"the module fails: {_line(error)}", "try it on a few examples in plain PyTorch"
            ) from error
        return f"cannot be mapped over clients ({_line(error)})"


def _line(error: BaseException) -> str:
    """The first sentence of an error."""
    return (str(error).splitlines() or [type(error).__name__])[0].partition(". ")[0]


def _starts(trial: NetTrial, engine: str) -> str:
    one, other = trial.net.init(5), trial.net.init(5)
    return _first(
        f'"{name}" was drawn otherwise' for name in one if not torch.equal(one[name], other[name])
    )


def _trains(trial: NetTrial, engine: str) -> str:
    return _compare(trial, trial.train(engine), trial.wanted())


def _evaluates(trial: NetTrial, engine: str) -> str:
    pairs = zip(trial.losses(engine), trial.wanted_losses(), strict=True)
    worst = max(abs(ours - theirs) / (1 + abs(theirs)) for ours, theirs in pairs)
    return "" if worst <= trial.tolerance else f"the losses differ by {worst:.1e}"


def _repeats(trial: NetTrial, engine: str) -> str:
    """Client 0 again, after the others: whatever they left in the module would show."""
    return _compare(trial, trial.train(engine, [0]), trial.train(engine)[:1])


def _isolates(trial: NetTrial, engine: str) -> str:
    return _compare(trial, trial.with_other_data().train(engine)[:1], trial.train(engine)[:1])


def _keeps_to_itself(trial: NetTrial, engine: str) -> str:
    before = _attributes(trial.module)
    randomness = torch.get_rng_state()
    trial.train(engine, [0])
    after = _attributes(trial.module)
    changed = [name for name in after if before.get(name) != after[name]]
    if changed:
        return f'it changes its own attribute "{changed[0]}" in its forward pass'
    is_the_same = torch.equal(randomness, torch.get_rng_state())
    return "" if is_the_same else "it draws from torch's common randomness"


_PROPERTIES: dict[str, Found] = {
    "the start depends on the seed alone": _starts,
    "three clients train as in plain PyTorch": _trains,
    "they are evaluated as in plain PyTorch": _evaluates,
    "a client trains alike before and after others": _repeats,
    "another client's data change nothing": _isolates,
    "a forward pass leaves nothing behind": _keeps_to_itself,
}


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


def _attributes(module: nn.Module) -> dict[str, Any]:
    """Numbers, texts and lengths of lists that a module's parts hold."""
    attributes: dict[str, Any] = {}
    for path, part in module.named_modules():
        for name, value in vars(part).items():
            if isinstance(value, bool | int | float | str) and name != "training":
                attributes[f"{path}.{name}".lstrip(".")] = value
            elif isinstance(value, list) and not name.startswith("_"):
                attributes[f"{path}.{name}".lstrip(".")] = len(value)
    return attributes


def code_of(module: nn.Module) -> Iterator[Hashable]:
    """What decides how a module computes: its layers, their code and their settings."""
    yield repr(module)
    yield tuple(_attributes(module).items())
    for part in module.modules():
        kind = type(part)
        functions = [kind.forward, *(value for value in vars(part).values() if callable(value))]
        yield kind.__module__, kind.__qualname__, *(_code(function) for function in functions)


def _code(function: Any) -> Hashable:
    """A function by what it does and what it closes over."""
    cells = getattr(function, "__closure__", None) or ()
    contents = repr([cell.cell_contents for cell in cells])
    return getattr(function, "__code__", repr(function)), contents


def _first(reasons: Iterator[str]) -> str:
    return next(reasons, "")
