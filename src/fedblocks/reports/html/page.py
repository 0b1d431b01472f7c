"""The page: everything put together, escaped, and written to one file."""

from __future__ import annotations

import json
from base64 import b64encode
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedblocks.core.errors import RunFolderError, UserError
from fedblocks.core.full_disks import reason_of
from fedblocks.reports.html.facts import facts_of
from fedblocks.reports.html.figures import Chart
from fedblocks.reports.html.gather import Story, gather
from fedblocks.reports.html.maps import map_charts, numbers_of
from fedblocks.reports.html.results import result_charts
from fedblocks.runs.storage.folder import write_atomically

if TYPE_CHECKING:
    from jinja2 import Environment

TEMPLATES = Path(__file__).parent / "templates"
LIMIT = 6_000_000  # bytes of a report


@dataclass(frozen=True, eq=False)
class Content:
    """What a page is made of, and nothing of how it looks."""

    results: list[Chart]
    maps: list[list[Chart]]
    facts: dict[str, Any]

    @staticmethod
    def of(story: Story) -> Content:
        blocks = enumerate(numbers_of(story), 1)
        maps = [map_charts(story, numbers, number) for number, numbers in blocks]
        return Content(result_charts(story), maps, facts_of(story))

    def slim(self) -> Content:
        """The same with fewer details."""
        maps = [[chart.slim() for chart in row] for row in self.maps]
        return Content([chart.slim() for chart in self.results], maps, self.facts)

    @property
    def charts(self) -> list[Chart]:
        """All of them, in the order of the page."""
        return [*self.results, *(chart for row in self.maps for chart in row)]

    def script_data(self) -> list[dict[str, Any]]:
        """All charts, as the page's script needs them."""
        return [chart.script_data() for chart in self.charts]

    def html(self) -> str:
        """The inner part of the page, which changes while a run goes on."""
        template = environment().get_template("content.html")
        return template.render(results=self.results, maps=self.maps, **self.facts)


def write_report(folder: str | Path, out: str | Path | None = None) -> Path:
    """Write a run, a comparison or a folder of runs as one HTML file, which needs no
    network; where it was written.
    """
    path = Path(out) if out is not None else Path(folder) / "report.html"
    script = chart_script()
    content = Content.of(gather(Path(folder)))
    text = page(content, script)
    if len(text.encode()) > LIMIT:
        text = page(content.slim(), script)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, text)
    except OSError as error:
        raise RunFolderError(
            f"cannot write {path}: {reason_of(error, path)}", "choose a file with --out"
        ) from error
    return path


def page(content: Content, script: str, live: str = "") -> str:
    """The HTML; `live` is the address of the events by which a page learns that
    something is new.
    """
    from markupsafe import Markup

    own = (TEMPLATES / "report.js").read_text(encoding="utf-8")
    style = (TEMPLATES / "report.css").read_text(encoding="utf-8")
    return (
        environment()
        .get_template("report.html")
        .render(
            policy=policy(script, own, live=bool(live)),
            live=live,
            style=Markup(style),
            script=Markup(script),
            own=Markup(own),
            charts=Markup(embed(content.script_data())),
            results=content.results,
            maps=content.maps,
            **content.facts,
        )
    )


def chart_script() -> str:
    """The chart library's script, from the installed package."""
    try:
        from plotly.offline import get_plotlyjs
    except ImportError as error:
        fix = 'pip install "fedblocks[report]"'
        raise UserError("a report needs the package plotly", fix) from error
    script: str = get_plotlyjs()
    return script


def environment() -> Environment:
    """Templates in which every value is escaped."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    templates = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    templates.filters["number"] = format_cell
    return templates


def format_cell(value: Any) -> str:
    """A cell: numbers short, nothing as a dash."""
    if value is None:
        return "-"
    if isinstance(value, float):
        return "-" if value != value else f"{value:.3f}" if abs(value) < 1000 else f"{value:,.0f}"
    return str(value)


def embed(value: Any) -> str:
    """JSON that cannot end the script element it stands in."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def policy(*scripts: str, live: bool = False) -> str:
    """No script but these, and no network; a live page may ask the server that it came from."""
    digests = [b64encode(sha256(text.encode()).digest()).decode() for text in scripts]
    hashes = " ".join(f"'sha256-{digest}'" for digest in digests)
    network = " connect-src 'self';" if live else ""
    return (
        f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; "
        f"img-src data: blob:;{network} base-uri 'none'; form-action 'none'"
    )
