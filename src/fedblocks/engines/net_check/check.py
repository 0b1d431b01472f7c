"""Runs a net on a few examples of three clients, on both engines and in plain PyTorch,
and compares.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Hashable, Mapping
from contextlib import suppress
from dataclasses import replace

import torch
from torch import Tensor

from fedblocks.core.errors import NetError, UserError
from fedblocks.core.forward_errors import IN_RANGE, range_seen
from fedblocks.core.net import Net
from fedblocks.core.own_code import line_of
from fedblocks.core.torch_modes import in_own_modes
from fedblocks.engines.net_check.company import inputs_like, mixes_examples
from fedblocks.engines.net_check.inspection import code_of
from fedblocks.engines.net_check.known_again import key_of
from fedblocks.engines.net_check.limits import known_limit
from fedblocks.engines.net_check.merging import findings_on_adapters, require_merging
from fedblocks.engines.net_check.own_state import left_behind
from fedblocks.engines.net_check.passes import (
    computes_anew,
    keeps_outside,
    overwritten,
    uses_others,
    writes_to_inputs,
)
from fedblocks.engines.net_check.properties import (
    INPUTS_KEPT,
    NOTHING_LEFT,
    OF_THE_NET,
    ONCE,
    OWN,
    PROPERTIES,
    SEEDED,
    Found,
    first_line,
    is_over_batch,
    unlike_first_steps,
    unlike_starts,
)
from fedblocks.engines.net_check.report import ENGINES, NOT_TRUE, Finding, NetReport
from fedblocks.engines.net_check.seeding import (
    IGNORES_SEED,
    ignores_seed,
    require_new_modules,
    require_numbers,
)
from fedblocks.engines.net_check.sizes import ALIKE, Batches, unlike_in_sizes
from fedblocks.engines.net_check.swallowed import swallows_errors
from fedblocks.engines.net_check.trial import SIZES, NetTrial, examples_for
from fedblocks.layers.guard import needs_guard

MOST = 1_000_000  # parameters of a net that is checked by itself when a run starts
MOST_TO_COMPARE = 30_000_000  # of one of which some steps are compared then
EXAMPLES = sum(SIZES)

# by the net's code and how it is made: the same net is made anew for every run
_reports: dict[Hashable, NetReport] = {}


@in_own_modes
def check_net(net: Net, x: Tensor | None = None, y: Tensor | None = None) -> NetReport:
    """Whether a net trains here as its module does in plain PyTorch, by running both on a few
    examples.

    `x` are some inputs and `y` their labels; without them, they are drawn as `input_shape` and the
    logits say.
    """
    inputs = examples_for(net) if x is None else x
    report = check_training(net, inputs, y)
    if report.refusal or report.unclear:
        return report
    return replace(report, findings=(*report.findings, _finding_on_sizes(net, inputs.cpu())))


def check_training(net: Net, inputs: Tensor, y: Tensor | None = None) -> NetReport:
    """All but how it answers in batches of other sizes, which a run asks in its own."""
    maker = key_of((net.make, net.output, net.fields))
    key = (*code_of(net.template), maker, tuple(inputs.shape[1:]), inputs.dtype, net.dtype)
    if key not in _reports:
        report = _check(net, inputs, y)
        if report.refusal or report.unclear:  # perhaps of these inputs or weights alone
            return report
        _reports[key] = report
    return _reports[key]


def check_before_run(
    net: Net, data: Tensor, mapped: bool, batches: Callable[[], Batches] | None = None
) -> str:
    """Refuse a user's module that would give wrong numbers in a run, whose batches these are; what
    is to be known of another, or nothing.

    `mapped` asks for the engine that maps clients; else a net that cannot be mapped is only kept
    from it. Nets made of torch's layers and ours alone need no check but that of their start and of
    layers over the batch.
    """
    is_guarded = needs_guard(net.template, net.constant_names)
    if is_guarded or net.unmappable:
        _protect(net, data)
    if not is_guarded:
        require_numbers(net)
        require_new_modules(net)
        _require_seeded(net)
        return _keep_from_stacks(net, _mixes(net, data), mapped)
    require_merging(net, data)
    require_numbers(net)
    require_new_modules(net)
    check = _check_passes if net.size() > MOST else _check_all
    texts = [check(net, data, mapped)]
    if not net.unmappable:
        why = unlike_in_sizes(net, batches() if batches else Batches.usual(data))
        said = f"{NOT_TRUE}: {ALIKE}: {why}" if why else ""
        texts.append(_keep_from_stacks(net, said, mapped))
    return "; ".join(text for text in (*texts, _outside(net, data)) if text)


def _protect(net: Net, data: Tensor) -> None:
    """Lend a module copies of the tensors that it writes to and nobody trains."""
    with suppress(Exception):  # on numbers that were drawn
        net.overwritten |= overwritten(net, net.init(0), inputs_like(net, data))


def _check_all(net: Net, data: Tensor, mapped: bool) -> str:
    report = _report_on(net, data, check_training)
    report.require("vectorised" if mapped else "sequential")
    if report.unclear:
        name = type(net.template).__name__
        return f"the net {name} could not be checked against plain PyTorch: {report.unclear}"
    return _keep_from_stacks(net, report.why_not("vectorised"), mapped)


def _check_passes(net: Net, data: Tensor, mapped: bool) -> str:
    """Of a large net: what a few forward passes show, without training it."""
    params, x = net.init(0), inputs_like(net, data)
    try:
        wrong = {
            NOTHING_LEFT: left_behind(net, params, x),
            INPUTS_KEPT: writes_to_inputs(net, params, x),
            ONCE: computes_anew(net, params, x),
            OWN: uses_others(net, params, x),
        }
        why = mixes_examples(net, data) or swallows_errors(net, params, x)
        is_compared = net.size() <= MOST_TO_COMPARE
        if is_compared:
            trial = NetTrial.as_it_is(net, x)
            says, reason = unlike_first_steps(trial, "sequential")
            wrong |= {says: reason}
            if not (why or reason or net.unmappable):
                why = _unlike_in_a_stack(trial)
    except UserError:
        raise
    except Exception:  # on numbers that were drawn: a run says it of those of the data
        wrong, why, is_compared = {}, "", False
    for says in (says for says, reason in wrong.items() if reason):
        message = f"the net would not train as in plain PyTorch; {NOT_TRUE}: {says}: {wrong[says]}"
        raise NetError(message, "change the module; `check_net` shows all")
    name = type(net.template).__name__
    tried = "a few steps of one client were" if is_compared else "its forward pass was"
    large = f"it has more than {MOST:,} parameters, and only {tried} tried"
    texts = (
        f"the training of the net {name} was not compared with plain PyTorch: {large}",
        _keep_from_stacks(net, why, mapped),
    )
    return "; ".join(text for text in texts if text)


def _unlike_in_a_stack(trial: NetTrial) -> str:
    try:
        return ": ".join(filter(None, unlike_first_steps(trial.for_another_engine(), "vectorised")))
    except Exception as error:  # of a net that runs one by one
        return first_line(error)


def _outside(net: Net, data: Tensor) -> str:
    """A warning of what a module's code keeps outside the module."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            kept = keeps_outside(net, net.init(0), inputs_like(net, data))
        except Exception:  # on numbers that were drawn
            return ""
    if not kept:
        return ""
    return (
        f"the forward pass of the net {type(net.template).__name__} changes {kept}, which is "
        "outside the net: what depends on it is not as in plain PyTorch, for a run calls the "
        "module more often, or repeats its steps without it"
    )


def _mixes(net: Net, data: Tensor) -> str:
    """Why a net of torch's layers cannot stand in a stack; empty: it can."""
    if not any(map(is_over_batch, net.template.modules())):
        return mixes_examples(net, data)
    # a layer over the batch that leaves padding out hides others
    report = _report_on(net, data, check_net)
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


def _report_on(net: Net, data: Tensor, check: Callable[[Net, Tensor], NetReport]) -> NetReport:
    """A report on numbers of usual size, or on those of the data where the module
    cannot take such.
    """
    rows = data[:EXAMPLES].cpu()
    if net.fields is not None or not rows.is_floating_point():
        return check(net, rows)  # numbers drawn here would be no tokens
    draw = torch.Generator().manual_seed(0)
    report = check(net, torch.randn((EXAMPLES, *rows.shape[1:]), generator=draw))
    return check(net, rows) if report.unclear else report


def _check(net: Net, x: Tensor, y: Tensor | None) -> NetReport:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of torch, about slow rules
        try:
            return _compare_all(net, x.cpu(), None if y is None else y.cpu())
        except UserError as error:
            return NetReport(refusal=error.message, fix=error.fix)
        except Exception as error:
            if limit := known_limit(error):
                return NetReport(refusal=f"{limit[0]}{line_of(error)}", fix=limit[1])
            why = f"{first_line(error)}{line_of(error)}"
            refusal = f"the module cannot take inputs of shape {list(x.shape[1:])}: {why}"
            if seen := range_seen(error, x, net.fields):
                return NetReport(refusal=f"{refusal}; it was given {seen}", fix=IN_RANGE)
            return NetReport(refusal=refusal, fix="try it on a few examples in plain PyTorch")


def _compare_all(net: Net, x: Tensor, y: Tensor | None) -> NetReport:
    trial = NetTrial.of(net, x, y)
    if not trial.is_finite():
        return NetReport(unclear="in plain PyTorch, too, it ends in numbers that are not finite")
    trials = dict(zip(ENGINES, (trial, trial.for_another_engine()), strict=True))
    findings = [Finding(says, _wrong(trials, says, find)) for says, find in PROPERTIES.items()]
    findings += findings_on_adapters(net, x)
    remark = IGNORES_SEED if ignores_seed(net) else ""
    return NetReport(tuple(findings), remark=remark)


def _finding_on_sizes(net: Net, x: Tensor) -> Finding:
    why = unlike_in_sizes(net, Batches.usual(x))
    return Finding(ALIKE, {"vectorised": why} if why else {})


def _wrong(trials: Mapping[str, NetTrial], says: str, find: Found) -> Mapping[str, str]:
    if says in OF_THE_NET:
        engine = ENGINES[0]
        reasons = dict.fromkeys(ENGINES, _reason(trials[engine], engine, find))
    else:
        reasons = {engine: _reason(trial, engine, find) for engine, trial in trials.items()}
    return {engine: reason for engine, reason in reasons.items() if reason}


def _reason(trial: NetTrial, engine: str, find: Found) -> str:
    try:
        return find(trial, engine)
    except NetError:
        raise
    except Exception as error:
        if limit := known_limit(error):
            raise NetError(*limit) from error
        if engine == "sequential" and not isinstance(error, UserError):
            raise NetError(
                f"the module fails: {first_line(error)}{line_of(error)}",
                "try it on a few examples in plain PyTorch",
            ) from error
        return f"cannot be mapped over clients ({first_line(error)})"


def _require_seeded(net: Net) -> None:
    wrong = unlike_starts(net)
    if wrong:
        raise NetError(
            f"the net would not train as in plain PyTorch; {NOT_TRUE}: {SEEDED}: {wrong}",
            "draw what it starts with by torch alone, not by Python's or NumPy's randomness",
        )
