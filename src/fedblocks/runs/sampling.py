"""The clients of every round, as the sampler of a run chooses them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fedblocks.config.choices import make
from fedblocks.config.model import Config
from fedblocks.config.registry import kinds
from fedblocks.core.errors import UserError
from fedblocks.core.own_code import LOCAL, own_name
from fedblocks.core.random import generator
from fedblocks.core.samplers import (
    Candidates,
    Sampler,
    TraceSampler,
    UniformSampler,
    choose_clients,
)
from fedblocks.data import Federation
from fedblocks.data.rows import Ints
from fedblocks.runs.federations import placed

TRACE = "trace"  # under which a run keeps the hash of its trace
TRIED = 10  # rounds for which a sampler is asked before the first
MOST_EMPTY = 1_000  # rounds without anybody before somebody must take part


@dataclass(frozen=True, eq=False)
class Sampling:
    """Who takes part in which round: a function of seed and round alone."""

    sampler: Sampler
    clients: list[int]  # that are trained on
    sizes: Ints  # [all clients], training examples
    names: Sequence[str]  # of all clients
    count: int  # clients a round
    seed: int

    @property
    def content_hash(self) -> str:
        """Of a trace that decides it; empty: there is none."""
        return str(getattr(self.sampler, "content_hash", ""))

    def cohort(self, round: int) -> list[int]:
        """The clients of a round, counted from 0 as the loop and all random numbers do."""
        if self.count == len(self.clients) and isinstance(self.sampler, UniformSampler):
            return self.clients
        return self.among(self.clients, self.count, round)

    def among(self, clients: list[int], count: int, round: int, *attempt: int) -> list[int]:
        """So many of some clients; others after a failed attempt."""
        draw = generator(self.seed, round, *attempt, "cohort")
        most = min(count, len(clients))
        candidates = Candidates(clients, self.sizes, self.names, most, round + 1, draw)
        return choose_clients(self.sampler, candidates)


def sampling_of(config: Config, federation: Federation, clients: list[int], count: int) -> Sampling:
    """The sampler of a configuration over the clients that are trained on; tried on some rounds."""
    sizes, names = federation.train.sizes, federation.names
    with placed(config, ("cohort", "sampler")):
        sampling = Sampling(sampler_of(config), clients, sizes, names, count, config.seed)
        if not isinstance(sampling.sampler, UniformSampler):
            _try_rounds(sampling, config.rounds)
    return sampling


def _try_rounds(sampling: Sampling, rounds: int) -> None:
    """Refuse a sampler that does not repeat itself, or that leaves all rounds empty."""
    sampler = sampling.sampler
    if isinstance(sampler, TraceSampler):
        sampler.check_names(sampling.names)
    for round in range(min(rounds, TRIED)):
        if sampling.cohort(round) != sampling.cohort(round):
            raise UserError(
                f'the sampler "{own_name(sampler)}" chose other clients when it was asked for '
                f"round {round + 1} again",
                "draw all random numbers from candidates.draw, and keep nothing between calls",
            )
    knows_sizes = sampling.sizes.any()  # the server of a real federation does not
    if knows_sizes and not any(sampling.cohort(round) for round in range(min(rounds, MOST_EMPTY))):
        message = f'the sampler "{own_name(sampler)}" chooses nobody in any round'
        raise UserError(message, "return a list of some of candidates.ids, or of their names")


def sampler_of(config: Config) -> Sampler:
    """The object that was handed over, or what the configuration names."""
    ingredients, choice = config.ingredients, config.cohort.sampler
    if ingredients is not None and ingredients.sampler is not None:
        return ingredients.sampler
    if choice is None:
        return UniformSampler()
    if choice.name not in kinds()["sampler"]:
        raise UserError(
            f'the run was started with a sampler of its own, "{choice.name.split(LOCAL)[-1]}", '
            "which must be passed again",
            "resume(path, method, data, sampler=...); a command takes the file that defines it "
            "with --code",
        )
    sampler: Sampler = make("sampler", choice.table)
    return sampler
