"""Fills the reference pages with what the code says of itself; a line `<!-- made: NAME
-->` stands for a text.
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Iterable
from typing import Any, is_typeddict

import typer
from click.testing import CliRunner
from pydantic import BaseModel
from pydantic_core import PydanticUndefined
from sphinx.application import Sphinx

import fedblocks
from fedblocks.cli.app import app as commands
from fedblocks.config import catalogue
from fedblocks.config.model import Config
from fedblocks.config.presets import PRESETS
from fedblocks.config.registry import kinds
from fedblocks.config.sections import (
    CheckpointSection,
    CohortSection,
    DataSection,
    EvaluationSection,
    GroupSection,
)

WIDTH = 96  # columns of help texts
SECTIONS = {
    "Top of the file": Config,
    "[data]": DataSection,
    "[cohort]": CohortSection,
    "[evaluation]": EvaluationSection,
    "[checkpoint]": CheckpointSection,
    "[groups.NAME]": GroupSection,
}

TITLES = {
    "data": "Data sets",
    "partition": "Partitions",
    "shift": "Shifts",
    "testbed": "Test-beds",
    "net": "Nets",
    "method": "Methods",
}
WHERE = {
    "data": "`data.name`, with options in `data.options`.",
    "partition": "`data.partition`: how rows are divided among clients.",
    "shift": "`data.shift`: how clients differ besides.",
    "testbed": "`data.testbed`: the federations of papers.",
    "net": "`net`.",
    "method": "`method`. Every method has [the common "
    "options](configuration.md#options-of-every-method), too; papers, "
    "plans and deviations are on the [page of each method](../methods/index.md).",
}


def table(headings: Iterable[str], rows: Iterable[Iterable[object]]) -> str:
    """A Markdown table; a bar within a cell would end it."""
    names = list(headings)
    lines = [names, ["---"] * len(names), *rows]
    return "\n".join(
        "| " + " | ".join(str(cell).replace("|", r"\|") for cell in line) + " |" for line in lines
    )


def command_pages() -> str:
    """Every command with its own help text, as the terminal shows it."""
    found = []
    everything = typer.main.get_command(commands)  # once: it takes longer than all the texts
    for words in all_commands(everything):
        shown = CliRunner().invoke(
            everything, [*words, "--help"], prog_name="fedblocks", terminal_width=WIDTH
        )
        found.append(f"## fedblocks {' '.join(words)}\n\n```text\n{shown.output.rstrip()}\n```")
    return "\n\n".join(found)


def all_commands(group: Any, above: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    found: list[tuple[str, ...]] = []
    for name, command in group.commands.items():
        below = getattr(command, "commands", None)
        found += all_commands(command, (*above, name)) if below else [(*above, name)]
    return found


def config_sections() -> str:
    """Every field of a configuration, from the model that checks it."""
    parts = [f"## {title}\n\n{fields_of(model)}" for title, model in SECTIONS.items()]
    return "\n\n".join(parts)


def fields_of(model: type[BaseModel]) -> str:
    fields = model.model_fields.items()
    rows = [
        (f"`{name}`", default_of(field), field.description or "a table") for name, field in fields
    ]
    return table(("field", "default", "meaning"), rows)


def default_of(field: Any) -> str:
    if field.default is PydanticUndefined:
        return "must be given"
    return "none" if field.default is None else shown(field.default)


def shown(value: Any) -> str:
    """A default as TOML has it; whole tables are told elsewhere."""
    if isinstance(value, BaseModel):
        value = value.model_dump(mode="json")
    if isinstance(value, dict):
        inner = ", ".join(
            f"{key} = {json.dumps(one)}" for key, one in value.items() if one is not None
        )
        return f"`{{{inner}}}`"
    return f"`{json.dumps(value)}`"


def all_choices() -> str:
    """Everything that a configuration may name, by the table that names it, with its options."""
    known = [kind for kind in TITLES if kind in kinds()] + [
        kind for kind in kinds() if kind not in TITLES
    ]
    return "\n\n".join(
        f"## {TITLES.get(kind, kind.capitalize())}\n\n{choices(kind)}" for kind in known
    )


def choices(kind: str) -> str:
    about = {
        entry["name"]: entry["about"]
        for entry in [*catalogue.data(), *catalogue.methods()]
        if "about" in entry
    }
    parts = [WHERE.get(kind, "")]
    for name, target in kinds()[kind].items():
        says = about.get(name) or (inspect.getdoc(target) or "").partition("\n")[0]
        parts.append(f"### {name}\n\n{says}\n\n{options_of(kind, name)}".rstrip())
    return "\n\n".join(parts)


def options_of(kind: str, name: str) -> str:
    common = {option["name"] for option in common_options()} if kind == "method" else set()
    own = [
        option for option in catalogue.describe_options(kind, name) if option["name"] not in common
    ]
    return option_table(own) if own else "No options of its own."


def common_options() -> list[dict[str, Any]]:
    return catalogue.describe_options("method", "fedavg")  # it has none of its own


def option_table(options: list[dict[str, Any]]) -> str:
    rows = [(f"`{o['name']}`", o["type"], option_default(o), o["about"]) for o in options]
    return table(("option", "is", "default", "meaning"), rows)


def option_default(option: dict[str, Any]) -> str:
    if option["required"]:
        return "must be given"
    return "none" if option["default"] is None else shown(option["default"])


def presets() -> str:
    rows = []
    for name, make in PRESETS.items():
        config = make()
        rows.append((f"`{name}`", config.method.name, config.data.name, config.rounds))
    return table(("preset", "method", "data", "rounds"), rows)


PLAIN = {  # names that have no docstring
    "Block": "`Private`, `Fresh`, `ServerOnly`, `Shared`, `Pool` or `PerClient`.",
    "Blocks": "Everything that one client holds during a round: `Params` by block.",
    "CHECKS": "The invariants of the contract, by name.",
    "DATASETS": 'Data sets by name; `DATASETS["mine"] = load_mine` adds one.',
    "IGNORE": "A label that is not scored: padding in sequences.",
    "METHODS": 'Methods by name; `METHODS["mine"] = Mine` adds one.',
    "NETS": 'Nets by name; `NETS["mine"] = make_mine` adds one.',
    "PRESETS": "Configurations by name.",
    "Params": "One copy of one block: tensors by name.",
}
CHAPTERS = {  # chapter -> modules whose names belong to it
    "Run, resume, compare, look": ("runs", "reports", "export"),
    "Data": ("data",),
    "Write a method": ("core", "nets"),
    "Methods": ("methods",),
    "Rounds by hand": ("engines",),
    "Check a method": ("testing",),
}


def python_names() -> str:
    """Every name of the package with its signature and its text."""
    homes = {name: module for name, (module, _) in fedblocks._HOMES.items()} | fedblocks._MODULES
    found = []
    for title, rooms in CHAPTERS.items():
        names = sorted(name for name, module in homes.items() if module.split(".")[0] in rooms)
        found.append(f"## {title}\n\n" + "\n\n".join(entry(name) for name in names))
    return "\n\n".join(found)


def entry(name: str) -> str:
    """A name as a heading with its signature, what it is, and the methods of a class
    that is not a record.
    """
    target = getattr(fedblocks, name)
    text = PLAIN.get(name) or inspect.cleandoc(inspect.getdoc(target) or "").replace("<", "&lt;")
    parts = [f"### {name}", text]
    if inspect.isfunction(target):
        signature = str(inspect.signature(target)).replace("'", "")
        parts.insert(1, f"```text\n{name}{signature}\n```")
    if inspect.isclass(target):
        parts += [members(target)]
    return "\n\n".join(part for part in parts if part)


def _hints(kind: Any) -> list[tuple[str, Any]]:
    return list(kind.__annotations__.items())


def members(kind: Any) -> str:
    """The functions of a class that say what they do, in a table."""
    if is_typeddict(kind):
        return table(
            ("keyword", "is"),
            [(f"`{key}`", f"`{what.__forward_arg__}`") for key, what in _hints(kind)],
        )
    own = [(key, value) for key, value in vars(kind).items() if not key.startswith(("_", "model_"))]
    plain = [(key, getattr(value, "__func__", getattr(value, "fget", value))) for key, value in own]
    rows = [
        (f"`{key}`", (inspect.getdoc(value) or "").partition("\n")[0])
        for key, value in plain
        if callable(value)
    ]
    rows = [(key, text.replace("<", "&lt;")) for key, text in rows if text]
    return table(("member", "what it does"), rows) if rows else ""


MADE = {
    "python": python_names,
    "commands": command_pages,
    "config": config_sections,
    "common": lambda: option_table(common_options()),
    "presets": presets,
    "choices": all_choices,
}


def fill(app: Sphinx, page: str, source: list[str]) -> None:
    source[0] = re.sub(r"<!-- made: (\w+) -->", lambda found: MADE[found[1]](), source[0])


def always(app: Sphinx, env: Any, *known: set[str]) -> list[str]:
    """These pages change with the code, which Sphinx does not see, so they are read in
    every build.
    """
    return [page for page in env.found_docs if page.startswith("reference/")]


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("source-read", fill)
    app.connect("env-get-outdated", always)
    return {"parallel_read_safe": True}
