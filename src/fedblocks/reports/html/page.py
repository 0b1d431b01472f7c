"""The page: everything put together, escaped, and written to one file."""

from __future__ import annotations

import json
import shlex
from base64 import b64encode
from collections import Counter
from collections.abc import Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

import tomli_w

from fedblocks.core.errors import RunFolderError, UserError
from fedblocks.reports.compare import leaderboard_of, verdict_on
from fedblocks.reports.html.figures import Cells, Chart
from fedblocks.reports.html.gather import Story, gather
from fedblocks.reports.html.maps import map_charts, numbers_of
from fedblocks.reports.html.results import client_name, result_charts, worst_clients
from fedblocks.reports.html.sharing import Picture, picture_of
from fedblocks.runs.environment import now
from fedblocks.runs.folder import CONFIG, write_atomically
from fedblocks.runs.grid import PLAN

TEMPLATES = Path(__file__).parent / "templates"
LIMIT = 6_000_000  # bytes of a report
SHOWN = 50  # refused updates, and notes, that are listed one by one


def write_report(folder: str | Path, out: str | Path | None = None) -> Path:
    """Write a run, a comparison or a folder of runs as one HTML file, which needs no network; where it was written."""
    path = Path(out) if out is not None else Path(folder) / "report.html"
    script = chart_script()
    story = gather(Path(folder))
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, page(story, script))
    except OSError as error:
        raise RunFolderError(f"cannot write {path}: {error.strerror or error}", "choose a file with --out") from error
    return path


def page(story: Story, script: str) -> str:
    """The HTML; where the details would make it too large, with fewer of them."""
    maps = [map_charts(story, found, number) for number, found in enumerate(numbers_of(story), 1)]
    results = result_charts(story)
    text = _rendered(story, script, results, maps)
    if len(text.encode()) > LIMIT:
        slim = [[chart.slim() for chart in row] for row in maps]
        text = _rendered(story, script, [chart.slim() for chart in results], slim)
    return text


def chart_script() -> str:
    """The chart library's script, from the installed package."""
    try:
        from plotly.offline import get_plotlyjs
    except ImportError as error:
        raise UserError("a report needs the package plotly", 'pip install "fedblocks[report]"') from error
    script: str = get_plotlyjs()
    return script


def _rendered(story: Story, script: str, results: list[Chart], maps: list[list[Chart]]) -> str:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined
    from markupsafe import Markup

    own = (TEMPLATES / "report.js").read_text(encoding="utf-8")
    drawn = [chart.drawn() for chart in (*results, *(chart for row in maps for chart in row))]
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["number"] = shown
    return environment.get_template("report.html").render(
        policy=_policy(script, own),
        style=Markup((TEMPLATES / "report.css").read_text(encoding="utf-8")),
        script=Markup(script),
        own=Markup(own),
        charts=Markup(embedded(drawn)),
        results=results,
        maps=maps,
        **_facts(story),
    )


def _facts(story: Story) -> dict[str, Any]:
    first = next(iter(story.firsts.values()))
    return {
        "title": story.folder.resolve().name,
        "made": now(),
        "problems": story.problems,
        **_leaderboard(story),
        "worst": worst_clients(story),
        "pictures": _pictures(story),
        "refused": _refused(story),
        "refusals": _refusals(story),
        "notes": _notes(story),
        "traffic": _traffic(story),
        "config": tomli_w.dumps(first.result.config.resolved()),
        "environment": {key: _flat(value) for key, value in first.environment.items() if key != "command"},
        "environments": len({json.dumps(_where(told.environment)) for told in _all(story)}),
        "command": shlex.join(first.environment.get("command", [])),
        "again": _again(story),
        "partitions": sorted({(told.result.config.seed, told.partition) for told in _all(story)}),
        "data_known": story.federation is not None,
        "has_local": "local" in story.runs,
    }


def _leaderboard(story: Story) -> dict[str, Any]:
    try:
        rows = leaderboard_of(story.results)
    except UserError:  # no test data
        rows = []
    single = sum(map(len, story.runs.values())) == 1
    return {"leaderboard": rows, "verdict": "" if single else verdict_on(story.results)}


def _pictures(story: Story) -> list[Picture]:
    made = {name: story.methods(name) for name in story.runs}
    return [picture_of(name, methods) for name, methods in made.items() if methods]


def _refused(story: Story) -> list[Cells]:
    """How often, by method and reason."""
    counts = Counter(
        (name, row["reason"]) for name, by in story.runs.items() for told in by.values() for row in told.refusals
    )
    return [[name, reason, count] for (name, reason), count in sorted(counts.items())]


def _refusals(story: Story) -> list[Cells]:
    rows = [
        [name, seed, row["round"], client_name(story, row["client"]), row["reason"], row["detail"]]
        for name, by in story.runs.items()
        for seed, told in by.items()
        for row in told.refusals
    ]
    return rows[:SHOWN]


def _notes(story: Story) -> list[Cells]:
    counts = Counter((name, n["level"], n["text"]) for name, t in _named(story) for n in t.result.notes)
    return [[*key, count] for key, count in list(counts.items())[:SHOWN]]


def _traffic(story: Story) -> list[Cells]:
    return [
        [name, row["block"], row["down"] / 1e6, row["up"] / 1e6]
        for name, told in story.firsts.items()
        for row in told.traffic
    ]


def _again(story: Story) -> str:
    if story.is_comparison:
        return shlex.join(["fedblocks", "compare", str(story.folder / PLAN), "--out", "NEW_FOLDER"])
    runs = [told.result.folder / CONFIG for told in _all(story)]
    return "\n".join(shlex.join(["fedblocks", "run", str(path), "--out", f"NEW_{path.parent.name}"]) for path in runs)


def _all(story: Story) -> list[Any]:
    return [told for _, told in _named(story)]


def _named(story: Story) -> list[tuple[str, Any]]:
    return [(name, told) for name, by in story.runs.items() for told in by.values()]


def _where(environment: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in environment.items() if key != "command"}


def _flat(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{k} {v}" for k, v in value.items())
    if isinstance(value, Sequence) and not isinstance(value, str):
        return ", ".join(map(str, value))
    return "-" if value is None else str(value)


def shown(value: Any) -> str:
    """A cell: numbers short, nothing as a dash."""
    if value is None:
        return "-"
    if isinstance(value, float):
        return "-" if value != value else f"{value:.3f}" if abs(value) < 1000 else f"{value:,.0f}"
    return str(value)


def embedded(value: Any) -> str:
    """JSON that cannot end the script element it stands in."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _policy(*scripts: str) -> str:
    """No network, and no script but these."""
    hashes = " ".join(f"'sha256-{b64encode(sha256(text.encode()).digest()).decode()}'" for text in scripts)
    return (
        f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; img-src data: blob:; "
        "base-uri 'none'; form-action 'none'"
    )
