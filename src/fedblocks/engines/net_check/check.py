"""Runs a net on a few examples of three clients, on both engines and in plain PyTorch,
and compares.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Hashable, Iterator, Mapping

import torch
from torch import Tensor, nn

from fedblocks.core.errors import NetError, UserError
from fedblocks.core.forward_errors import IN_RANGE, range_seen
from fedblocks.core.net import Net
from fedblocks.core.outside_modules import seeded
from fedblocks.core.own_code import line_of
from fedblocks.engines.net_check.company import DEPENDS, mixes_examples
from fedblocks.engines.net_check.inspection import code_of, loose_tensors, plain_attributes
from fedblocks.engines.net_check.merging import findings_on_adapters, require_merging
from fedblocks.engines.net_check.report import ENGINES, NOT_TRUE, Finding, NetReport
from fedblocks.engines.net_check.seeding import (
    IGNORES_SEED,
    ignores_seed,
    require_new_modules,
    require_numbers,
)
from fedblocks.engines.net_check.trial import BATCH, NetTrial, examples_for
from fedblocks.engines.steadiness import other_companies
from fedblocks.layers.guard import needs_guard
from fedblocks.layers.replacement import BatchNorm

MOST = 1_000_000  # parameters of a net that is checked by itself when a run starts
SEEDED = "the start depends on the seed alone"
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
        report = _check(net, inputs, y)
        if report.refusal:  # perhaps of these inputs alone
            return report
        _reports[key] = report
    return _reports[key]


def check_before_run(net: Net, data: Tensor, mapped: bool) -> str:
    """Refuse a user's module that would give wrong numbers in a run; what is to be known of
    another, or nothing.

    `mapped` asks for the engine that maps clients; else a net that cannot be mapped is only kept
    from it. Nets made of torch's layers and ours alone need no check but that of their start and of
    layers over the batch.
    """
    name = type(net.template).__name__
    if not needs_guard(net.template, net.constant_names):
        require_numbers(net)
        require_new_modules(net)
        _require_seeded(net)
        return _keep_from_stacks(net, _mixes(net, data), mapped)
    require_merging(net, data)
    if net.size() > MOST:
        why = f"it has more than {MOST:,} parameters"
        return f"the net {name} was not checked against plain PyTorch: {why}"
    require_numbers(net)
    require_new_modules(net)
    report = _report_on(net, data)
    report.require("vectorised" if mapped else "sequential")
    if report.unclear:
        return f"the net {name} could not be checked against plain PyTorch: {report.unclear}"
    return _keep_from_stacks(net, report.why_not("vectorised"), mapped)


def _mixes(net: Net, data: Tensor) -> str:
    """Why a net of torch's layers cannot stand in a stack; empty: it can."""
    if not any(map(_is_over_batch, net.template.modules())):
        return mixes_examples(net, data)
    report = _report_on(net, data)  # a layer over the batch that leaves padding out hides others
    return "" if report.refusal else report.why_not("vectorised")


def _keep_from_stacks(net: Net, why: str, mapped: bool) -> str:
    """Let a net that is wrong in a stack run one client after another, and say so."""
    if not why or net.unmappable:
        return ""
    name = type(net.template).__name__
    if mapped:
        message = f"the net {name} would not train as in plain PyTorch in a stack of clients: {why}"
        raise NetError(message, 'use engine = "sequential"')
    net.unmappable.append(name)
    return f"the net {name} runs one client after another: {why}"


def _report_on(net: Net, data: Tensor) -> NetReport:
    """A report on numbers of usual size, or on those of the data where the module
    cannot take such.
    """
    rows = data[:EXAMPLES].cpu()
    if net.fields is not None or not rows.is_floating_point():
        return check_net(net, rows)  # numbers drawn here would be no tokens
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
        except Exception as error:
            why = f"{_line(error)}{line_of(error)}"
            refusal = f"the module cannot take inputs of shape {list(x.shape[1:])}: {why}"
            if seen := range_seen(error, x, net.fields):
                return NetReport(refusal=f"{refusal}; it was given {seen}", fix=IN_RANGE)
            return NetReport(refusal=refusal, fix="try it on a few examples in plain PyTorch")


def _compare_all(net: Net, x: Tensor, y: Tensor | None) -> NetReport:
    trials = {engine: NetTrial.of(net, x, y) for engine in ENGINES}  # each has its own module
    if not trials["sequential"].is_finite():
        return NetReport(unclear="in plain PyTorch, too, it ends in numbers that are not finite")
    findings = [Finding(says, _wrong(trials, find)) for says, find in PROPERTIES.items()]
    findings += findings_on_adapters(net, x)
    remark = IGNORES_SEED if ignores_seed(net) else ""
    return NetReport(tuple(findings), remark=remark)


def _wrong(trials: Mapping[str, NetTrial], find: Found) -> Mapping[str, str]:
    reasons = {engine: _reason(trial, engine, find) for engine, trial in trials.items()}
    return {engine: reason for engine, reason in reasons.items() if reason}


def _reason(trial: NetTrial, engine: str, find: Found) -> str:
    try:
        return find(trial, engine)
    except NetError:
        raise
    except Exception as error:
        if engine == "sequential" and not isinstance(error, UserError):
            raise NetError(
                f"the module fails: {_line(error)}{line_of(error)}",
                "try it on a few examples in plain PyTorch",
            ) from error
        return f"cannot be mapped over clients ({_line(error)})"


def _line(error: BaseException) -> str:
    """The first sentence of an error."""
    return (str(error).splitlines() or [type(error).__name__])[0].partition(". ")[0]


def _require_seeded(net: Net) -> None:
    wrong = _unlike_starts(net)
    if wrong:
        raise NetError(
            f"the net would not train as in plain PyTorch; {NOT_TRUE}: {SEEDED}: {wrong}",
            "draw what it starts with by torch alone, not by Python's or NumPy's randomness",
        )


def _starts(trial: NetTrial, engine: str) -> str:
    return _unlike_starts(trial.net)


def _unlike_starts(net: Net) -> str:
    """What differs between two starts by one seed."""
    one, other = net.init(5), net.init(5)
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
            return f'"{name}" is drawn, and neither a parameter nor a buffer'
    return ""


def _keeps_to_itself(trial: NetTrial, engine: str) -> str:
    before = plain_attributes(trial.module)
    randomness = torch.get_rng_state()
    trial.train(engine, [0])
    after = plain_attributes(trial.module)
    changed = [name for name in after if before.get(name) != after[name]]
    if changed:
        return f'it changes its own attribute "{changed[0]}" in its forward pass'
    is_the_same = torch.equal(randomness, torch.get_rng_state())
    return "" if is_the_same else "it draws from torch's common randomness"


def _takes_one(trial: NetTrial, engine: str) -> str:
    """Rows of padding beside a single one would hide that the module fails without them."""
    if engine == "sequential":  # fails as plain PyTorch does, for this client alone
        return ""
    try:
        one = trial.net(trial.starts[0], trial.x[:1])
    except Exception as error:
        return f"it fails on a batch of one example ({_line(error)})"
    wanted = [1, *trial.y.shape[1:], trial.classes]
    return "" if list(one.shape) == wanted else f"of one example it makes {list(one.shape)}"


def _answers_each(trial: NetTrial, engine: str) -> str:
    """What stands beside an example is another in a stack, where padding is."""
    if engine == "sequential" or any(map(_is_over_batch, trial.module.modules())):
        return ""
    x = trial.x[:BATCH]
    usual = trial.net(trial.starts[0], x)
    for rows in other_companies(x):
        outputs = trial.net(trial.starts[0], x[rows])
        if _difference(outputs, usual[rows]) > trial.tolerance:
            return DEPENDS
    return ""


def _is_over_batch(layer: nn.Module) -> bool:
    """Whether a layer is one over the batch in evaluation, and leaves padding out of it."""
    return isinstance(layer, BatchNorm) and layer.running_mean is None


PROPERTIES: dict[str, Found] = {
    SEEDED: _starts,
    "what is drawn is a parameter or a buffer": _registers,
    "three clients train as in plain PyTorch": _trains,
    "they are evaluated as in plain PyTorch": _evaluates,
    "an example can be evaluated alone": _takes_one,
    "it is evaluated alone as beside others": _answers_each,
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


def _first(reasons: Iterator[str]) -> str:
    return next(reasons, "")
