"""`fedblocks run` and `fedblocks resume`."""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedblocks.cli.code import CodeFiles, ingredients_of, read_code, with_ingredients
from fedblocks.cli.completion import some_config
from fedblocks.cli.output import (
    AsJson,
    Changes,
    clean,
    console,
    say,
    show_json,
    show_table,
    stoppable,
)
from fedblocks.core.errors import count_of

if TYPE_CHECKING:
    from fedblocks.config.code.ingredients import Ingredients
    from fedblocks.config.model import Config
    from fedblocks.runs.evaluated import EvaluatedRound
    from fedblocks.runs.progress import OnRound, RoundDone
    from fedblocks.runs.refusals import Refused
    from fedblocks.runs.result import RunResult

Out = Annotated[
    Path | None,
    typer.Option("--out", metavar="FOLDER", help="Run folder; default: runs/METHOD-DATA-001, ..."),
]
Reference = Annotated[
    Path | None,
    typer.Option(
        "--reference",
        metavar="FOLDER",
        help="Reference run; count clients that do worse than there.",
    ),
]
Quiet = Annotated[bool, typer.Option("--quiet", help="Show only warnings and the result.")]
Preset = Annotated[
    str,
    typer.Argument(
        metavar="CONFIG",
        help="TOML file, or preset such as digits-pfedmb (`fedblocks presets` lists all).",
        autocompletion=some_config,
    ),
]
Rounds = Annotated[
    str | None,
    typer.Option(
        "--rounds",
        metavar="NUMBER",
        help="Extend the run, also a finished one: +20 for 20 rounds more, or 60 for 60 in all.",
    ),
]
Track = Annotated[
    list[str] | None,
    typer.Option(
        "--track",
        metavar="TOOL",
        help="Mirror the run in tensorboard, wandb, trackio or mlflow; may be repeated.",
    ),
]


def run(
    config: Preset,
    changes: Changes = None,
    out: Out = None,
    reference: Reference = None,
    track: Track = None,
    code: CodeFiles = None,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Train as a configuration describes, in a new run folder."""

    def action() -> None:
        from fedblocks.cli.progress import Watch
        from fedblocks.config.presets import read_config, read_trackers
        from fedblocks.runs.ranks.joining import current_ranks, is_first, together
        from fedblocks.runs.ranks.run import run_part
        from fedblocks.runs.result import load_run
        from fedblocks.runs.run import free_folder
        from fedblocks.runs.run import run as start
        from fedblocks.runs.trackers import Mirrors

        def read() -> tuple[Config, list[str], RunResult | None]:
            own = read_code(code)
            against = load_run(reference) if reference is not None and is_first() else None
            chosen = with_ingredients(read_config(config, changes or []), own)
            return chosen, [*read_trackers(config, changes or []), *(track or [])], against

        chosen, trackers, against = together(read)
        folder = out if out is not None else free_folder(f"{chosen.method.name}-{chosen.data.name}")
        if (ranks := current_ranks()) is not None and not ranks.first:
            run_part(ranks, chosen, folder)
            return
        shown = Watch(chosen.method.name, quiet, sys.stderr if as_json else None)
        with shown as watch, Mirrors(trackers, folder, chosen, watch.on_note) as mirrors:
            result = start(chosen, folder, _both(watch.on_round, mirrors.on_round), watch.on_note)
        show_run(result, against, as_json)

    stoppable(action)


def resume(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Run folder.")],
    rounds: Rounds = None,
    reference: Reference = None,
    track: Track = None,
    code: CodeFiles = None,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Continue a run that was stopped or failed, or extend one."""

    def action() -> None:
        from fedblocks.cli.progress import Watch
        from fedblocks.runs.begun import Begun, read_begun
        from fedblocks.runs.ranks.joining import current_ranks, together
        from fedblocks.runs.ranks.run import resume_part
        from fedblocks.runs.result import load_run
        from fedblocks.runs.run import resume as go_on
        from fedblocks.runs.trackers import Mirrors

        own = together(lambda: read_code(code))
        if (ranks := current_ranks()) is not None and not ranks.first:
            together(lambda: None)  # the first looks at the folder
            resume_part(ranks, folder, own.ingredients_for)
            return

        def look() -> tuple[Begun, Ingredients | None, RunResult | None]:
            before = read_begun(folder)
            goes_on = before.status != "finished" or rounds is not None
            ingredients = ingredients_of(folder, own) if goes_on else None
            return before, ingredients, load_run(reference) if reference is not None else None

        before, ingredients, against = together(look)
        shown = Watch(before.config.method.name, quiet, sys.stderr if as_json else None)
        with shown as watch, Mirrors(track or [], folder, before.config, watch.on_note) as mirrors:
            on_round = _both(watch.on_round, mirrors.on_round)
            result = go_on(folder, on_round, watch.on_note, ingredients, rounds=rounds)
        if before.status == "finished" and rounds is None and not as_json:
            say(f"{folder} was finished already, after {count_of(result.rounds, 'round')}")
        show_run(result, against, as_json)

    stoppable(action)


def _both(first: OnRound, second: OnRound) -> OnRound:
    """Tell one, then the other."""

    def on_round(done: RoundDone) -> None:
        first(done)
        second(done)

    return on_round


def show_run(result: RunResult, reference: RunResult | None, as_json: bool) -> None:
    """Show how a run ended: as tables or JSON, and warnings if updates were refused or
    clients not scored."""
    _show_numbers(result, reference, as_json)
    refused = result.refused()
    warnings = [*result.remarks, *([_refusal_text(result, refused)] if refused.text else [])]
    for text in warnings:
        console(sys.stderr).print(f"warning: {clean(text)}", soft_wrap=True)


def _refusal_text(result: RunResult, refused: Refused) -> str:
    from fedblocks.runs.refusals import ADVICE

    if 0 < refused.in_last_round == refused.of_last_round:
        start = (
            f"every update of the last round was refused ({refused.reason}), so its models "
            f"learned nothing"
        )
    else:
        start = refused._replace(in_last_round=0).text  # of all rounds
    how = ": --set method.lr=... " if refused.advice == ADVICE else "; "
    advice = f"{refused.advice}{how}" if refused.advice else ""
    return f"{start}; {advice}`fedblocks report {result.folder}` lists them"


def _show_numbers(result: RunResult, reference: RunResult | None, as_json: bool) -> None:
    below = None
    if reference is not None:
        below = result.summary(reference=reference)["share_below_reference"]
    if as_json:
        more = {} if reference is None else {"share_below_reference": below}
        show_json({**result.as_json(), **more})
        return
    rows = _rows("last", result.last) + _rows("best by validation", result.best)
    headings = {
        "name": "",
        "round": "round",
        "part": "part",
        "view": "model",
        "mean": "mean" if result.metric.name == "accuracy" else f"{result.metric.name}, mean",
        "weighted": "by examples",
        "bottom_decile": "bottom decile",
        "worst": "worst",
        "std": "std",
        "clients": "clients",  # of a round's local models there are fewer
    }
    show_table(headings, rows)
    traffic = (result.bytes_down + result.bytes_up) / 1e6
    say(
        f"{result.status}: {count_of(result.rounds, 'round')}, {traffic:.1f} MB, "
        f"{result.seconds:.1f} s, in {result.folder}"
    )
    if below is not None:
        known = not math.isnan(below)
        share = f"{below:.1%} of the clients do worse than in the reference"
        say(share if known else "no client has a score both here and in the reference")


def _rows(name: str, evaluated: EvaluatedRound | None) -> list[dict[str, object]]:
    if evaluated is None:
        return []
    return [
        {"name": name, "round": evaluated.round, "part": part, "view": view, **numbers}
        for part, views in evaluated.summaries.items()
        for view, numbers in views.items()
    ]
