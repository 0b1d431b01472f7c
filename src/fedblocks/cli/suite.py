"""`fedblocks suite`: a method on the field's small real test-beds, beside fixed references."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedblocks.cli.code import CodeFiles, share_code
from fedblocks.cli.completion import some_method
from fedblocks.cli.output import AsJson, clean, console, say, show_json, show_table, stoppable
from fedblocks.cli.reproduce import Budget, Jobs, Out, default_jobs, has_gpu, seconds_of
from fedblocks.cli.suite_pieces import merge_files, show_plan
from fedblocks.core.errors import UserError, count_of

if TYPE_CHECKING:
    from fedblocks.recipes.suite.entrants import Entrant
    from fedblocks.recipes.suite.trial import SuiteTrial

Methods = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="METHOD",
        help="Method, or several; `fedblocks methods` lists all. With --merge: result files.",
        autocompletion=some_method,
    ),
]
Lite = Annotated[
    bool, typer.Option("--lite", help="Two seeds, defaults, packaged data: two minutes.")
]
Tuned = Annotated[
    bool,
    typer.Option("--tuned", help="Add rows with options chosen on validation data, 8 settings."),
]
Beds = Annotated[
    str | None, typer.Option("--beds", metavar="A,B", help="Only these beds; default: all.")
]
Seeds = Annotated[
    int | None, typer.Option("--seeds", min=1, help="Paired seeds; default: 6, with --lite 2.")
]
HeldOut = Annotated[
    bool, typer.Option("--held-out", help="Use the held-out variants: other clients and splits.")
]
Listed = Annotated[bool, typer.Option("--list", help="List the beds, their data and their cost.")]
Plan = Annotated[
    bool,
    typer.Option(
        "--plan", help="Say what is missing and how long it may take; default: all methods."
    ),
]
Merge = Annotated[
    bool, typer.Option("--merge", help="Merge result files of other machines into results/.")
]

SEEDS, LITE_SEEDS = 6, 2
HEADINGS = {
    "bed": "bed",
    "accuracy": "accuracy, %",
    "local": "to Local",
    "fedavg": "to FedAvg",
    "fedavg_ft": "to FedAvg+",
    "reduction": "error less, %",
    "rank": "rank",
    "harmed": "harmed, %",
    "decile": "decile, %",
    "new": "new, %",
    "megabytes": "MB",
}
MEANING = (
    "Points to each reference with 95 % intervals; error less: share of FedAvg+'s error that is "
    "gone; rank among a panel of eight; harmed: clients with more than one right answer fewer than "
    "with Local; decile: the worst tenth; new: clients that never trained."
)


def suite(
    methods: Methods = None,
    lite: Lite = False,
    tuned: Tuned = False,
    code: CodeFiles = None,
    beds: Beds = None,
    seeds: Seeds = None,
    held_out: HeldOut = False,
    budget: Budget = None,
    jobs: Jobs = None,
    out: Out = Path(),
    listed: Listed = False,
    plan: Plan = False,
    merge: Merge = False,
    as_json: AsJson = False,
) -> None:
    """Test a method on small real data sets and rank it.

    References that have results in the folder are not run again. Run it again to continue.
    """

    def action() -> None:
        from fedblocks.recipes.suite.beds import choose_beds
        from fedblocks.recipes.suite.trial import SuiteTrial

        share_code(code)
        chosen = choose_beds(beds, lite)
        if listed:
            _show_beds(as_json)
            return
        if merge:
            merge_files([Path(name) for name in methods or []], out, as_json)
            return
        if lite and tuned:
            raise UserError("--lite has no tuned rows", "leave out --lite or --tuned")
        seconds = None if budget is None else seconds_of(budget)
        trial = SuiteTrial(
            _entrants(methods or [], code or [], plan),
            chosen,
            seeds or (LITE_SEEDS if lite else SEEDS),
            out,
            tuned or (plan and not lite),
            held_out,
            jobs or default_jobs(),
            has_gpu(),
            None if seconds is None else time.monotonic() + seconds,
        )
        if plan:
            words = _words(code or [], lite, seeds, held_out, jobs, out)
            show_plan(trial, seconds, words, as_json)
        else:
            _carry_out(trial, as_json)

    stoppable(action)


def _words(
    code: list[str], lite: bool, seeds: int | None, held_out: bool, jobs: int | None, out: Path
) -> list[str]:
    """The options of a plan that the command which carries it out needs, too."""
    words = [word for file in code for word in ("--code", file)]
    words += ["--lite"] * lite + ["--held-out"] * held_out
    words += [] if seeds is None else ["--seeds", str(seeds)]
    words += [] if jobs is None else ["--jobs", str(jobs)]
    return words + ([] if out == Path() else ["--out", str(out)])


def _entrants(names: list[str], code: list[str], plan: bool) -> list[Entrant]:
    """The methods that were named; a plan without any is one of all."""
    from fedblocks.methods import METHODS
    from fedblocks.recipes.suite.entrants import Entrant

    if not names and not plan:
        raise UserError("say which method", "for example: fedblocks suite fedper --lite")
    return [Entrant.named(name, code) for name in dict.fromkeys(names or METHODS)]


def _carry_out(trial: SuiteTrial, as_json: bool) -> None:
    from fedblocks.recipes.suite.trial import absent_beds, other_data, put_to_test, scores_of

    absent = absent_beds(trial.beds)
    for bed, fix in absent.items():
        _whisper(f"left out: {bed}, whose data are absent. {fix}")
    done = put_to_test(trial, _whisper)
    rows = scores_of(trial)
    strange = other_data(trial)
    if as_json:
        show_json({"methods": rows, "absent": absent, "finished": done, "other_data": strange})
        return
    for row in rows:
        _show(row, trial, sorted(absent))
    for text in strange:
        say(f"warning: other data than the suite's manifest: {text}")
    if not done and not any(row["killed"] for row in rows):
        say("stopped at the budget; go on with the same command")


def _whisper(text: str) -> None:
    console(sys.stderr).print(clean(text), soft_wrap=True)


def _show(row: dict[str, Any], trial: SuiteTrial, absent: list[str]) -> None:
    """One method: a line for each bed, and what they come to."""
    from fedblocks.recipes.suite.beds import VERSION
    from fedblocks.recipes.suite.entrants import TUNED
    from fedblocks.recipes.suite.trial import versions_seen

    held_out = ", held-out variants" if trial.held_out else ""
    say(f"{row['name']}: suite {VERSION}{held_out}, {trial.seeds} paired seeds")
    if not row["scores"]:
        for text in _killed(row) or ["nothing has been run yet"]:
            say(text)
        return
    show_table(HEADINGS, [_cells(score) for score in row["scores"]])
    say(MEANING)
    for text in _sentences(row, trial.seeds, absent):
        say(text)
    own = next(one for one in trial.entrants if row["name"].removesuffix(TUNED) == one.name)
    if own.source:
        seen = versions_seen(trial.out / "results", own.name)
        say(f"Versions of {own.name} that were tried here: {seen}.")


def _sentences(row: dict[str, Any], seeds: int, absent: list[str]) -> list[str]:
    lines = [
        f"{score['bed']}: {score['error']}; counts as Local"
        for score in row["scores"]
        if score["error"]
    ]
    lines += [_warning(score) for score in row["scores"] if score["warnings"]]
    lines += _killed(row)
    below, compared = row["below_both"], row["compared"]
    if below:
        lines.append(
            f"Below both Local and FedAvg on {len(below)} of {count_of(len(compared), 'bed')}: "
            f"{', '.join(below)}."
        )
    mean = row["error_reduction"].get("fedavg_ft")
    if mean is not None:
        width = "" if mean["half_width"] is None else f" ± {100 * mean['half_width']:.1f}"
        lines.append(
            f"On {count_of(row['of'], 'bed')} {100 * mean['mean']:+.1f}{width} % of FedAvg+'s "
            f"error is gone{_rank(row)}."
        )
    if seeds < SEEDS:
        lines.append(f"{seeds} of {SEEDS} seeds: intervals are wide, and there is no verdict.")
    if absent:
        lines.append(f"Absent, so there is no score of the whole suite: {', '.join(absent)}.")
    return lines


def _rank(row: dict[str, Any]) -> str:
    """Among the panel and itself; one of the panel is among eight."""
    from fedblocks.recipes.suite.scores import PANEL, like

    places = 1 + sum(like(other, row["name"]) != row["name"] for other in PANEL)
    return f"; average rank {row['rank']:.1f} of {places}" if row["rank"] else ""


def _warning(score: dict[str, Any]) -> str:
    from fedblocks.runs.refusals import told_of_seeds

    return f"warning: {score['bed']}, {told_of_seeds(score['warnings'])}"


def _killed(row: dict[str, Any]) -> list[str]:
    """The beds where a worker was killed from outside: no score, and no failure of the method."""
    again = "no failure of the method; the same command runs it again, with --jobs 1 in less memory"
    return [f"{text}; {again}" for text in row["killed"].values()]


def _cells(score: dict[str, Any]) -> dict[str, Any]:
    width = "" if score["half_width"] is None else f" ± {100 * score['half_width']:.1f}"
    gains = {
        other: "-" if gain is None else _interval(gain["difference"])
        for other, gain in score["gains"].items()
    }
    plus = score["gains"].get("fedavg_ft")
    harmed = score["harmed"].get("local")
    return {
        "bed": score["bed"] + (" (failed)" if score["error"] else ""),
        "accuracy": f"{100 * score['mean']:.1f}{width}",
        **gains,
        "reduction": "-" if plus is None else f"{100 * plus['error_reduction']['mean']:+.1f}",
        "rank": "-" if score["rank"] is None else f"{score['rank']:.1f}",
        "harmed": "-" if harmed is None else f"{100 * harmed:.0f}",
        "decile": f"{100 * score['bottom_decile']:.1f}",
        "new": "-" if score["new"] is None else f"{100 * score['new']:.1f}",
        "megabytes": f"{score['bytes'] / 1e6:.2f}",
    }


def _interval(value: dict[str, float]) -> str:
    low, high = 100 * value["low"], 100 * value["high"]
    return f"{100 * value['mean']:+.1f} [{low:+.1f}, {high:+.1f}]"


def _show_beds(as_json: bool) -> None:
    """The beds, whether their data are there, and what FedAvg costs on them."""
    from fedblocks.recipes.suite.beds import BEDS
    from fedblocks.recipes.suite.trial import absent_beds

    absent = absent_beds(BEDS.values())
    rows = [
        {
            "name": bed.name,
            "about": bed.about,
            "data": bed.data_set + (" (absent)" if bed.name in absent else ""),
            "clients": f"{bed.clients - bed.new} + {bed.new} new",
            "budget": f"{count_of(bed.rounds, 'round')} x {count_of(bed.epochs, 'epoch')}",
            "seconds": bed.seconds,
            "fix": absent.get(bed.name, ""),
        }
        for bed in BEDS.values()
    ]
    if as_json:
        show_json(rows)
        return
    headings = {"name": "bed", "about": "what", "data": "data set", "clients": "clients"}
    show_table({**headings, "budget": "budget", "seconds": "seconds of FedAvg on a core"}, rows)
    say("Absent data: `fedblocks data list` says which files to put where.")
