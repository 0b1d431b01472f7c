"""The page docs/reproduction.md, made of the files in results/."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import fmean
from typing import Any

from fedblocks.recipes import RECIPES
from fedblocks.recipes.chart import chart_of
from fedblocks.recipes.claims_page import claims_section
from fedblocks.recipes.lengths import length_notes, older_rule
from fedblocks.recipes.running.results import WARNING
from fedblocks.recipes.show import Row, row_of
from fedblocks.runs.refusals import ADVICE

SHAPES = ("table", "figure")  # of what is repeated here; the suite has a page of its own
HEAD = """# Published tables and figures, repeated

Made by `docs/generate.py` from `results/*.json`, which `fedblocks reproduce` writes; do not edit.

```
fedblocks reproduce --list                       # tables and figures: cells, data, estimated cost
fedblocks reproduce pfedmb-table2 --quick        # scaled down, minutes on 2 CPU cores
fedblocks reproduce pfedmb-table2 --cells "c10-2class-50/*" --seeds 3 --budget 540s
```

- **Going on.** Every run is an ordinary run folder in `runs/reproduce/`, named by its
  configuration. The same command goes on where the last one stopped: at the budget, by Ctrl-C or by
  a kill. Equal configurations are run once, whichever table asks for them.
- **Choosing values.** Learning rates and other values of the paper's grid are chosen on validation
  data with seed 0, for every method of a table in the same way: 12 tries (6 in the tables of FedMN)
  for a fifth of the rounds, the best third of them for half, the best in full; a longer run goes on
  from the shorter one. Where a paper trains until convergence, the best of these scores also says
  for how many rounds. `--full-grid` tries all in full, as does `--quick`. All validation scores
  with their rounds and what was chosen stand in the results. Test data have no say.
- **On a GPU** runs that differ in seeds, partitions and learning rates only are lanes of one, in
  one process that reads each data set once. They end as if alone, up to the last bits of sums.
- **Tidy.** `--tidy` deletes the runs of a cell's tries once the cell is done; their scores are in
  the results. Private state of many clients may fill a disk: three of the eight rows of FedMN's
  EMNIST table, beside other runs, took 64 GB.
- **Several processes on a GPU.** `--jobs 4` gives each an equal part of its memory. Other programs
  there may leave too little: fewer clients are then trained at once, or the cell says who holds it.
- **Several machines.** `fedblocks reproduce --merge FILE FILE` joins results files of one recipe
  into `results/`; what one of them has done is not run again. Every number says which code, device,
  torch and partition made it (`FEDBLOCKS_COMMIT` names the commit of a copy without `.git`).
- **Numbers.** Ours are means over seeds with 95 % intervals (Student). A published number inside
  the interval is "within noise". With one seed there is no interval. Scaled-down numbers
  (`--quick`) show that everything works; they are not comparable with published ones.
- **Data.** The files of each data set go where `fedblocks data list` says. Where official files are
  missing, a cell says so and names its stand-in, a recipe of its own under its own name. With
  `--quick` the stand-ins run at once.
- **Costs** in `--list` are estimates from a quick measurement of each net on this device.
"""


def reproduction_page(folder: Path) -> str:
    """The page as Markdown: verdicts, full results, scaled-down ones."""
    results = _stored(folder)
    full = [one for one in results if not one["quick"]]
    sections = [section(one) for one in full] or ["No full results are stored yet."]
    quick = [section(one) for one in results if one["quick"]]
    parts = [claims_section(full), "## Full size", "", *sections, ""]
    return "\n".join([HEAD, *parts, "## Scaled down (`--quick`)", "", *quick])


def reproduction_charts(folder: Path) -> dict[str, str]:
    """SVG of every full-size table by the name of its file."""
    tables = [one for one in _stored(folder) if _has_chart(one)]
    return {chart_name(one): chart_of(_rows(one)) for one in tables}


def chart_name(results: dict[str, Any]) -> str:
    """The file of a table's picture."""
    return f"reproduction-{results['recipe']}.svg"


def _has_chart(results: dict[str, Any]) -> bool:
    return results["shape"] == "table" and not results["quick"]


def _stored(folder: Path) -> list[dict[str, Any]]:
    files = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("*.json"))]
    ours = [one for one in files if isinstance(one, dict) and one.get("shape") in SHAPES]
    some = [one for one in ours if any(cell["seeds"] for cell in one["cells"].values())]
    return sorted(some, key=lambda one: (one["stand_in_for"] or one["recipe"], one["recipe"]))


def _rows(results: dict[str, Any]) -> list[Row]:
    return [row_of(key, entry, results["quick"]) for key, entry in results["cells"].items()]


def section(results: dict[str, Any]) -> str:
    """One recipe: a table with a row for each method, or a line for each cell of a figure."""
    of = f", a stand-in for {results['stand_in_for']}" if results["stand_in_for"] else ""
    rows = _rows(results)
    body = _pivot(rows, results["quick"]) if results["shape"] == "table" else _lines(rows)
    caption = f"{results['title']} ({results['unit']}). {results['paper']}."
    versions = f"fedblocks {results['versions']['fedblocks']}, torch {results['versions']['torch']}"
    notes = [f"- {note}" for note in results["notes"]]
    head = f"### {results['recipe']}{of}"
    picture = [f"![{results['title']}](_static/{chart_name(results)})", ""]
    drawn = picture if _has_chart(results) else []
    origin = f"Made with {versions}, {_cost(results)}."
    shifts = _remarks(rows, results["cells"]) if _has_chart(results) else []
    return "\n".join([head, "", caption, "", *body, "", *drawn, *shifts, *notes, "", origin, ""])


def _remarks(rows: list[Row], cells: dict[str, dict[str, Any]]) -> list[str]:
    """What the numbers of a table have in common."""
    return [*_shifts(rows), *older_rule(cells), *length_notes(cells), *_warned(cells)]


def _warned(cells: dict[str, dict[str, Any]]) -> list[str]:
    """Numbers whose runs ended with a warning; what may help is for those who run it."""
    texts = {
        f"{key}, seed {seed}": one[WARNING].removesuffix(f"; {ADVICE}")
        for key, entry in cells.items()
        for seed, one in entry["seeds"].items()
        if WARNING in one
    }
    return [f"- {where}: {text}." for where, text in texts.items()]


def _shifts(rows: list[Row]) -> list[str]:
    """How far ours are from the published numbers of a setting, all methods together: a shift that
    all have in common, Local too, comes from data or training rather than from a method.
    """
    known = [row for row in rows if row["difference"] is not None]
    by_setting: dict[str, list[float]] = {}
    for row in known:
        by_setting.setdefault(row["name"].partition("/")[0], []).append(row["difference"])
    return [
        f"- {setting}: ours minus published is {fmean(gaps):+.1f} on average over {len(gaps)} "
        f"rows, from {min(gaps):+.1f} to {max(gaps):+.1f}."
        for setting, gaps in by_setting.items()
        if len(gaps) > 1
    ]


def _cost(results: dict[str, Any]) -> str:
    """How long all stored runs of a table took, and on what."""
    entries = results["cells"].values()
    runs = [run for entry in entries for run in (*entry["tuning"], *entry["seeds"].values())]
    minutes = sum(run["seconds"] for run in runs) / 60
    done = sum(bool(entry["seeds"]) for entry in entries)
    devices = " and ".join(results["devices"])
    return f"{done} of {_all_cells(results)} cells, {minutes:.1f} minutes of {devices}"


def _all_cells(results: dict[str, Any]) -> int:
    """How many cells there are, begun or not; a study of our own stores all of its own."""
    stored = set(results["cells"])
    if results["recipe"] in RECIPES:
        cells = RECIPES[results["recipe"]]().cells
        stored |= {cell.key for cell in cells if cell.in_quick or not results["quick"]}
    return len(stored)


def _pivot(rows: list[Row], quick: bool) -> list[str]:
    """Settings side by side: ours, and below it what is published."""
    settings = list(dict.fromkeys(row["name"].partition("/")[0] for row in rows))
    methods = list(dict.fromkeys(row["name"].partition("/")[2] for row in rows))
    cells = {row["name"]: row for row in rows}
    lines = [f"| | {' | '.join(settings)} |", "|---" * (len(settings) + 1) + "|"]
    for method in methods:
        texts = [_cell(cells.get(f"{setting}/{method}"), quick) for setting in settings]
        lines.append(f"| {method} | {' | '.join(texts)} |")
    return lines


def _cell(row: Row | None, quick: bool) -> str:
    if row is None or row["ours"] is None:
        return "-"
    if row["published"] is None or quick:
        return show_mean(row)
    return f"{show_mean(row)} (published {row['published']:.2f}, {row['verdict']})"


def _lines(rows: list[Row]) -> list[str]:
    lines = ["| cell | ours | seeds |", "|---|---|---|"]
    measured = [row for row in rows if row["ours"] is not None]
    return lines + [f"| {row['name']} | {show_mean(row)} | {row['seeds']} |" for row in measured]


def show_mean(row: Row) -> str:
    """Our mean with its interval, where there are several seeds."""
    if row["half_width"] is None:
        return f"{row['ours']:.2f}"
    return f"{row['ours']:.2f} ± {row['half_width']:.2f}"
