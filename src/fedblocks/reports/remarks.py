"""What a leaderboard does not show: clients that it leaves out, refused updates, unequal rounds."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from fedblocks.runs.refusals import told_of_seeds
from fedblocks.runs.result import RunResult

Runs = Mapping[str, Mapping[int, RunResult]]  # method -> seed -> run
Texts = dict[str, dict[int, list[str]]]  # the same of sentences


def remarks_on(runs: Runs) -> list[str]:
    """Sentences for the reader of a leaderboard of finished runs; what is true of all of them
    is said once.
    """
    return _told(runs, lambda run: run.summary().remarks)


def remarks_on_scores(runs: Runs) -> list[str]:
    """The same without refused updates, of which there is more to say."""
    return _told(runs, lambda run: _without(run.summary().remarks, [run.refused().text]))


def _told(runs: Runs, said_of: Callable[[RunResult], list[str]]) -> list[str]:
    texts = {
        name: {seed: said_of(run) for seed, run in by.items()}
        for name, by in _finished(runs).items()
    }
    of_all = _shared_by_all(texts)
    own = [
        f"{name}{sentence}"
        for name, by in texts.items()
        for sentence in _of_method({seed: _without(said, of_all) for seed, said in by.items()})
    ]
    unequal = remark_on_rounds(runs)
    return [*of_all, *own, *([unequal] if unequal else [])]


def remark_on_rounds(runs: Runs) -> str:
    """A sentence where methods were trained for unlike numbers of rounds; else nothing."""
    lengths = {
        name: sorted({run.rounds for run in by.values()}) for name, by in _finished(runs).items()
    }
    if len({number for own in lengths.values() for number in own}) < 2:
        return ""
    each = ", ".join(f"{name} {_span(own)}" for name, own in lengths.items())
    return f"not all were trained for equally many rounds, and differ by that, too ({each})"


def _finished(runs: Runs) -> dict[str, dict[int, RunResult]]:
    done = {
        name: {seed: run for seed, run in by.items() if run.status == "finished"}
        for name, by in runs.items()
    }
    return {name: by for name, by in done.items() if by}


def _shared_by_all(texts: Texts) -> list[str]:
    """What every run of several methods says."""
    every = [said for by in texts.values() for said in by.values()]
    if len(texts) < 2:
        return []
    return [text for text in every[0] if all(text in said for said in every)]


def _without(said: list[str], others: list[str]) -> list[str]:
    return [text for text in said if text not in others]


def _of_method(by_seed: Mapping[int, list[str]]) -> list[str]:
    """What the seeds of a method say; seeds are named where they do not say the same."""
    (first, *others) = by_seed.values()
    if all(said == first for said in others):
        return [f": {text}" for text in first]
    sentences = {seed: "; ".join(said) for seed, said in by_seed.items() if said}
    return [f", {told_of_seeds(sentences)}"]


def _span(rounds: list[int]) -> str:
    return str(rounds[0]) if len(rounds) == 1 else f"{rounds[0]} to {rounds[-1]}"
