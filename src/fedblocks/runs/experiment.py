"""The nets, methods and groups of a configuration over its data, each tried before the first
round.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fedblocks.config.choices import MEANT, make
from fedblocks.config.model import ALL, Config
from fedblocks.config.sections import Choice, GroupSection
from fedblocks.config.sources import Key
from fedblocks.core.client_names import client_numbers
from fedblocks.core.errors import DataError, NetError, UserError, count_of, nearest
from fedblocks.core.forward_errors import IN_RANGE, range_seen
from fedblocks.core.hooks import ask_sentences
from fedblocks.core.method import Method
from fedblocks.core.net import Net
from fedblocks.core.outside_modules import LogitsError, say_where
from fedblocks.core.own_code import line_of, own_code
from fedblocks.core.structure import check_structure
from fedblocks.data import Federation
from fedblocks.data.targets import describe_targets, gaps_in_labels, is_one_hot
from fedblocks.engines.round import Experiment
from fedblocks.runs.federations import placed
from fedblocks.runs.members import group_of_each

SEVERAL_LABELS = 'where these are several labels, each there or not, say task="multi-label"'
WITH_FIELDS = "Net.of(..., inputs=data.fields), for a module that takes these"


def experiment_of(config: Config, federation: Federation, unseen: Sequence[int]) -> Experiment:
    """Every group of clients with its net and method; nets are tried on two examples."""
    members = {n: _members(config, n, group, federation) for n, group in config.groups.items()}
    with placed(config, ("groups",)):
        groups = group_of_each(members, federation.names)
    tables = {ALL: (config.net, config.method)}
    tables |= {name: (group.net, group.method) for name, group in config.groups.items()}
    used = {name: tables[name] for name in dict.fromkeys(groups)}
    methods = {name: _method(config, name, *choices, federation) for name, choices in used.items()}
    by_client = groups if config.groups else ()
    return Experiment(methods, federation, config.seed, by_client, unseen=unseen)


def net_of(choice: Choice, federation: Federation) -> Net:
    """A net that fits the federation; tried on two examples."""
    shape = tuple(federation.x.shape[1:])
    net = make("net", choice.table, input_shape=shape, classes=federation.classes)
    return _try_net(net, choice.name, federation)


def _try_net(net: Net, name: str, federation: Federation) -> Net:
    """The net, if it turns examples into as many logits as there are classes."""
    shape = tuple(federation.x.shape[1:])
    task = federation.task
    wanted = [2, *task.output_shape(federation.y, federation.classes)]
    inputs = f"inputs of shape {list(shape)} ({str(federation.input_type).removeprefix('torch.')})"
    try:
        first = federation.inputs(range(min(2, len(federation.x))))
        outputs = net(net.init(0), first.expand(2, *shape).cpu())
    except LogitsError as error:
        raise NetError(error.message, say_where(error.entries, wanted[-1])) from error
    except (RuntimeError, ValueError, TypeError, IndexError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        seen = range_seen(error, first, federation.fields)
        message = f'net "{name}" cannot take {inputs}: {reason}{line_of(error)}'
        if seen:
            raise UserError(f"{message}; it was given {seen}", IN_RANGE) from error
        is_mixed = federation.input_type.is_floating_point and "same dtype" in reason
        fix = _OTHER_TYPE if is_mixed else _other_inputs(federation)
        raise UserError(message, fix) from error
    if list(outputs.shape) != wanted:
        verb = "needs" if federation.classes == 1 else "need"
        need = f"{describe_targets(federation)} {verb} {wanted}"
        message = f'net "{name}" turns two {inputs} into {list(outputs.shape)}; {need}'
        fix = _as_many_outputs(federation)
        if is_one_hot(federation):
            fix = f"every row of y has one 1: use y.argmax(1) for a class; {SEVERAL_LABELS}"
        elif wanted == [2, 1, *outputs.shape[1:]] and task.of_classes:  # a column of labels
            fix = f"y has shape {list(federation.y.shape)}: use y[:, 0]"
        elif [*outputs.shape, 1] == wanted:
            fix = "let the net return [batch, 1], without a squeeze or flatten at its end"
        elif gaps := gaps_in_labels(federation):
            message, fix = f"{message}, but {gaps}", f"number the labels from 0 on, or {fix}"
        raise UserError(message, fix)
    _check_weights(federation)
    return net


_OTHER_TYPE = (
    "numbers of two types meet: make the net by Net.of(..., dtype=torch.float64) for double "
    "precision, or leave out .double() and .float() in its forward pass"
)


def _as_many_outputs(federation: Federation) -> str:
    """What to do where a net has other outputs than the task needs."""
    many, task = federation.classes, federation.task
    if not task.of_classes:
        what = "number" if task.kind == "regression" else "label"
        return f"give the net {count_of(many, 'output')}, one for each {what} of an example"
    if federation.y.dim() == 1:
        return f"give the net {count_of(many, 'output')}, one for each class"
    fix = f"give the net {count_of(many, 'output')} for every label of an example"
    if task.facts.steps is None and many == 2:
        fix += f"; {SEVERAL_LABELS}"
    return fix


def _other_inputs(federation: Federation) -> str:
    """What to do where a net cannot take its inputs."""
    if federation.fields is not None:
        return f"each example has {', '.join(federation.fields.labels)}: {WITH_FIELDS}"
    if federation.input_type.is_floating_point:
        return "choose a net for inputs of this shape"
    return (
        "whole numbers are tokens, for a net that begins with an embedding; for measurements use "
        'x.astype("float32")'
    )


def _check_weights(federation: Federation) -> None:
    weights, classes = federation.task.class_weights, federation.classes
    if weights and len(weights) != classes:
        message = f"task.class_weights has {len(weights)} numbers for {classes} outputs"
        raise UserError(message, "give one for each class or label")


def _method(
    config: Config, group: str, net: Choice, method: Choice, federation: Federation
) -> Method:
    above: Key = () if group == ALL else ("groups", group)
    with placed(config, (*above, "net")):
        handed_over = _method_of_objects(config, group, federation)
        own_net = net_of(net, federation) if handed_over is None else handed_over.net
    with placed(config, (*above, "method")):
        with own_code(f'the method "{method.name}"', "correct how it is made"):
            complete: Method = handed_over or make("method", method.table, net=own_net)
        check_structure(complete)
        complete = complete.over(config.horizon)
        _check_degenerate(complete, config.allow_degenerate)
        _check_tags(method.name, complete, federation)
    return complete


def _method_of_objects(config: Config, group: str, federation: Federation) -> Method | None:
    """The method that was handed over for a group, with its net tried."""
    if config.ingredients is None:
        return None
    method = config.ingredients.method_of(group)
    _try_net(method.net, type(method.net.template).__name__, federation)
    return method


def _check_degenerate(method: Method, allowed: bool) -> None:
    """Refuse settings that make this another method with the net that it has."""
    said = [] if allowed else ask_sentences(method, "degenerate")
    if said:
        raise UserError(said[0], MEANT)


def _check_tags(name: str, method: Method, federation: Federation) -> None:
    for tag in method.tags:
        if tag not in federation.tags:
            message = f'"{name}" needs the tag "{tag}" of every client, which the data do not have'
            other = f"{method.without_tags}; or " if method.without_tags else ""
            fix = (
                f"{other}choose a shift or a data set that gives it; in Python: "
                f'Federation.from_users(..., tags={{"{tag}": [0, 1, ...]}}), one whole number for '
                "each client"
            )
            raise DataError(message, fix)


def _members(config: Config, name: str, group: GroupSection, federation: Federation) -> list[int]:
    """The clients of a group."""
    if group.tag is None:
        with placed(config, ("groups", name, "clients")):
            return client_numbers(group.clients, federation.names)
    if group.tag not in federation.tags:
        fix = nearest(group.tag, federation.tags)
        with placed(config, ("groups", name, "tag")):
            raise UserError(f'the data have no tag "{group.tag}"', fix)
    tags = federation.tags[group.tag]  # [clients]
    members: list[int] = np.flatnonzero(tags == group.value).tolist()
    if not members:
        values = ", ".join(str(value) for value in np.unique(tags)[:20])
        with placed(config, ("groups", name, "value")):
            raise UserError(f"no client has {group.tag} = {group.value}", f"choose from {values}")
    return members
