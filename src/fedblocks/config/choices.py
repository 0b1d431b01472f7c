"""The tables of a configuration that name something (method, net, data set, ...):
checked and completed.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from torch import nn

from fedblocks.config.options import Table, complete, construct, options_of
from fedblocks.config.own_nets import make_net
from fedblocks.config.problems import Path, Problem
from fedblocks.config.registry import BY_CODE, FILLED_IN, is_own_data, kinds, unlisted_method
from fedblocks.core.checks import OptionError
from fedblocks.core.errors import NetError, UserError, nearest
from fedblocks.core.hooks import ask_sentences
from fedblocks.core.introspection import Option
from fedblocks.core.method import Method
from fedblocks.core.net import Net
from fedblocks.core.option_types import show
from fedblocks.core.task import Task

WORDS = {
    "method": "method",
    "net": "net",
    "data": "data set",
    "partition": "partition",
    "shift": "shift",
    "testbed": "test-bed",
    "sampler": "sampler",
}
MEANT = (
    "choose another value or net, or say that you mean it: allow_degenerate = true (Python: True)"
)
WHERE: dict[str, Path] = {
    "net": ("net",),
    "method": ("method",),
    "partition": ("data", "partition"),
    "shift": ("data", "shift"),
    "testbed": ("data", "testbed"),
    "sampler": ("cohort", "sampler"),
}


def options(kind: str, name: str) -> dict[str, Option]:
    """The options of a method, a net, ... by its name."""
    return options_of(kinds()[kind][name], FILLED_IN[kind])


def fill_in_defaults(table: Table, problems: list[Problem]) -> Table:
    """A configuration with every default of what it names; what is wrong goes to `problems`."""
    table = {**table, "data": _data(table.get("data"), problems)}
    for kind in ("net", "method"):
        table[kind] = _choice(kind, table.get(kind), WHERE[kind], problems)
    cohort = table.get("cohort")
    if isinstance(cohort, dict) and cohort.get("sampler") is not None:
        sampler = _choice("sampler", cohort["sampler"], WHERE["sampler"], problems)
        table["cohort"] = {**cohort, "sampler": sampler}
    groups = table.get("groups")
    if isinstance(groups, dict):
        table["groups"] = {
            name: _group(name, group, table, problems) for name, group in groups.items()
        }
    return table


def rename(kind: str, table: Any, name: Any) -> Any:
    """A table that now names something else: it keeps the options that both have."""
    known = kinds()[kind]
    if not isinstance(table, dict) or name not in known or table.get("name") not in known:
        return {"name": name}
    old = options(kind, table["name"])
    new = options(kind, name)
    left_behind = {k for k, option in old.items() if k not in new or new[k].kind != option.kind}
    return {**{k: v for k, v in table.items() if k not in left_behind}, "name": name}


def make(kind: str, table: Mapping[str, Any], **filled_in: Any) -> Any:
    """What a completed table describes: a net, a method, a partition, a shifted federation."""
    name = table["name"]
    values = {k: v for k, v in table.items() if k != "name"}
    values = {**filled_in, **construct(options(kind, name), values)}
    target = kinds()[kind][name]
    return make_net(target, name, **values) if kind == "net" else target(**values)


def method_problems(table: Table, path: Path, allow_degenerate: bool) -> list[Problem]:
    """What a method itself says of its options."""
    try:
        method: Method = make("method", table, net=any_net())
    except NetError:
        return []  # with the real net it may be right
    except OptionError as error:
        value = show(table.get(error.option))
        return [Problem((*path, error.option), error.why, error.fix, value)]
    except UserError as error:
        return [Problem((*path, *option_named_in(error.message, table)), error.message, error.fix)]
    except Exception:
        # it needs the real net; it is made, and says what is wrong, before the run starts
        return []
    if allow_degenerate:
        return []
    try:
        said = ask_sentences(method, "degenerate")
    except UserError as error:
        return [Problem(path, error.message, error.fix)]
    sentences = [text for text in said if text in _with_another_net(table)]
    return [Problem((*path, *option_named_in(text, table)), text, MEANT) for text in sentences]


def task_problems(table: Any) -> list[Problem]:
    """What is wrong with the names of a task: its kind, its loss, each of its metrics."""
    problems: list[Problem] = []
    rest = dict(table) if isinstance(table, dict) else {}
    while (problem := _task_problem(rest)) is not None:
        problems.append(problem)
        _, *option = problem.path
        if option in ([], ["kind"]):  # which losses and metrics there are depends on the kind
            break
        rest = _without_wrong(rest, option[0])
    return problems


def _task_problem(table: Table) -> Problem | None:
    """The first thing that is wrong with a task."""
    try:
        Task(**table)
    except UserError as error:
        option, _, rest = error.message.partition(": ")
        fix = f"{error.fix}; {BY_CODE}" if rest.startswith("there is no") else error.fix
        if option in table:
            return Problem(("task", option), rest, fix)
        return Problem(("task",), error.message, fix)
    except (TypeError, ValueError):
        return None  # a field of a wrong type or name, which is reported with its place
    return None


def _without_wrong(table: Table, option: str) -> Table:
    """A task without what is wrong with an option: the first wrong one of several metrics."""
    names = table[option] if isinstance(table[option], list) else []
    alone = [{**table, option: [name]} for name in names]
    wrong = next((at for at, one in enumerate(alone) if _task_problem(one) is not None), None)
    left = [] if wrong is None else names[:wrong] + names[wrong + 1 :]
    return {**{k: v for k, v in table.items() if k != option}, **({option: left} if left else {})}


def _with_another_net(table: Table) -> list[str]:
    """What a method also says with an unlike net; the rest depends on the net and is
    asked when that is known.
    """
    try:
        method: Method = make("method", table, net=another_net())
    except Exception:
        return []
    return method.degenerate()


def _data(data: Any, problems: list[Problem]) -> Any:
    if not isinstance(data, dict):
        return data
    chosen = data.get("options", {})
    if not isinstance(chosen, dict):
        fix = "write options = {...}; `fedblocks data list --json` shows what each data set takes"
        problems.append(Problem(("data", "options"), "it is not a table", fix))
    whole = {"name": data.get("name"), **(chosen if isinstance(chosen, dict) else {})}
    done = _choice("data", whole, ("data",), problems, below=("options",))
    data = {**data, "options": {k: v for k, v in done.items() if k != "name"}}
    if "testbed" not in data:
        own = data.get("clients") is None and is_own_data(data.get("name"))
        data.setdefault("partition", {"name": "by_user" if own else "iid"})
    for kind in ("partition", "shift", "testbed"):
        if kind in data:
            data[kind] = _choice(kind, data[kind], WHERE[kind], problems)
    return data


def _choice(kind: str, entry: Any, path: Path, problems: list[Problem], below: Path = ()) -> Any:
    word = WORDS[kind]
    table = {"name": entry} if isinstance(entry, str) else entry
    if not isinstance(table, dict):
        fix = f'write {path[-1]} = {{name = "..."}}; {nearest("", kinds()[kind])}'
        problems.append(Problem(path, f"name a {word}", fix))
        return entry
    name = table.get("name")
    known_names = kinds()[kind]
    if not isinstance(name, str) or name not in known_names:
        message = f"name a {word}" if name is None else f"there is no {word} {show(name)}"
        missing = unlisted_method(str(name)) if kind == "method" else ""
        known = nearest(str(name or ""), known_names) + ("" if name is None else f"; {BY_CODE}")
        fix = missing or known
        problems.append(Problem((*path, "name"), message, fix))
        return table
    if kind == "sampler" and "candidates" in options(kind, name):
        message = f'SAMPLERS["{name}"] is a sampler, and should be what makes one'
        problems.append(Problem(path, message, f'write SAMPLERS["{name}"] = lambda: function'))
        return table
    rest = {k: v for k, v in table.items() if k != "name"}
    whose = f'{word} "{name}"'
    return {"name": name, **complete(options(kind, name), rest, (*path, *below), whose, problems)}


def _group(name: str, group: Any, table: Table, problems: list[Problem]) -> Any:
    """A group of clients: what it does not say, it has in common with all others."""
    if not isinstance(group, dict):
        return group
    for kind in ("net", "method"):
        common = table[kind]
        if not isinstance(common, dict):
            continue
        own = group.get(kind, {})
        own = {"name": own} if isinstance(own, str) else own
        if isinstance(own, dict):
            is_other = own.get("name", common["name"]) != common["name"]
            base = rename(kind, common, own["name"]) if is_other else common
            whole = _choice(kind, {**base, **own}, ("groups", name, kind), problems)
            group = {**group, kind: whole}
    return group


def option_named_in(sentence: str, table: Any) -> Path:
    """The option that a sentence such as `strength = 0 makes ...` or `FedALA.top = 9:
    ...` begins with.
    """
    name = sentence.partition(" ")[0].rpartition(".")[2]
    return (name,) if isinstance(table, dict) and name in table else ()


@cache
def any_net() -> Net:
    """A net to ask a method questions that do not depend on its net."""
    return Net.of(lambda: nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 2)))


@cache
def another_net() -> Net:
    """A net of another depth, with a norm."""
    return Net.of(
        lambda: nn.Sequential(
            nn.Linear(2, 2), nn.LayerNorm(2), nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 2)
        )
    )
