"""A round of several ranks piece by piece, with small numbers and stand-ins for what is around."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import fedblocks as fb
from fedblocks.core.random import derive
from fedblocks.core.rules import Average
from fedblocks.core.server import Cohort
from fedblocks.core.state import State
from fedblocks.core.uploads import Upload
from fedblocks.engines.close_round import Admitted
from fedblocks.engines.round import Experiment
from fedblocks.runs.ranks.checkpoints import gathered_state, members_of, serve_shard
from fedblocks.runs.ranks.closing import close_together
from fedblocks.runs.ranks.experiment import RankExperiment
from fedblocks.runs.ranks.ranks import Ranks
from fedblocks.runs.ranks.uploads import GroupUploads, describe_group

from .in_threads import play_in_threads

OWNERS = np.array([0, 1, 0, 1, 1, 0])  # of six clients, on two ranks


def experiment(rank: int, unseen: tuple[int, ...] = ()) -> RankExperiment:
    whole = replace(
        Experiment.of(fb.FedAvg(fb.small_net()), fb.small_federation(), seed=3), unseen=unseen
    )
    return RankExperiment.part_of(whole, np.array([9, 8, 7, 6, 5, 4]), OWNERS, rank)


def test_a_rank_knows_its_clients_and_the_sizes_of_all() -> None:
    first, second = experiment(0), experiment(1, unseen=(3, 5))
    assert first.own([5, 1, 0, 4]) == [5, 0] and second.own([5, 1, 0, 4]) == [1, 4]
    assert first.own([]) == []
    assert (first.trained_here, second.trained_here, experiment(0, (3, 5)).trained_here) == (
        3,
        2,
        2,
    )
    cohort = second.cohort([4, 1], 7)
    assert cohort.ids.tolist() == [4, 1] and cohort.sizes.tolist() == [5.0, 8.0]
    assert (cohort.population, cohort.round) == (4, 7) and cohort.sizes.dtype == torch.double
    assert cohort.unseen.tolist() == [3, 5] and cohort.unseen.dtype == torch.long
    assert cohort.seed == derive(3, 7, "server") and first.cohort([0], 0).population == 6


def upload(ids: list[int], values: list[float], weights: list[float]) -> Upload:
    """One number and one count for each client."""
    copies = {"w": torch.tensor(values)[:, None], "n": torch.tensor(values).double()[:, None]}
    return Upload(
        "model",
        torch.tensor(ids),
        copies,
        torch.tensor(weights).double()[:, None],
        False,
        Average(),
    )


class Plain(fb.FedAvg):
    """A block of two tensors that `close_together` only adds up."""

    def blocks(self) -> Any:
        return {"model": fb.Shared(self.net.whole)}


PARTS = ((([4, 0], [1.0, 5.0], [1.0, 3.0])), (([2], [9.0], [4.0])), None)


def close(ranks: Ranks, share: float) -> Any:
    part = PARTS[ranks.number]
    own = (
        {} if part is None else {"all": Admitted({"model": upload(*part)}, cohort_of(part[0]), [])}
    )
    stands: Any = SimpleNamespace(
        methods={"all": Plain(fb.small_net())}, share=share,
        data=SimpleNamespace(device=torch.device("cpu")),
        cohort=lambda ids, round: cohort_of(ids),
    )  # fmt: skip
    slots = {"w": torch.tensor([[-1.0]]), "n": torch.tensor([[-1.0]]).double()}
    state = State(2, {"model": slots}, {"model": {}}, {})
    return close_together(ranks, stands, state, own)


def cohort_of(ids: list[int]) -> Cohort:
    return Cohort(torch.tensor(ids), torch.ones(len(ids)).double(), {}, 6, 2, 0)


# weights 1, 3 and 4; a share of 0.45 cuts the 4 to the level of 0.45 (level + 4)
LEVEL = 0.45 * 4 / 0.55


@pytest.mark.parametrize(
    ("share", "mean"),
    [(1.0, (1 * 1 + 3 * 5 + 4 * 9) / 8), (0.45, (1 * 1 + 3 * 5 + LEVEL * 9) / (4 + LEVEL))],
)
def test_means_of_three_ranks_are_by_the_weights_of_all_clients(
    share: float, mean: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    for state in play_in_threads(3, lambda ranks: close(ranks, share), monkeypatch):
        own = state.server["model"]
        assert state.round == 3 and (own["w"].dtype, own["n"].dtype) == (
            torch.float32,
            torch.double,
        )
        assert own["n"].item() == pytest.approx(mean, rel=1e-14)
        assert own["w"].item() == pytest.approx(mean, rel=1e-6)


def test_what_a_group_sends_is_known_everywhere_in_the_order_of_clients() -> None:
    ranks, method = Ranks(1, 3, 1.0), Plain(fb.small_net())
    admitted = [
        None if part is None else Admitted({"model": upload(*part)}, cohort_of(part[0]), [])
        for part in PARTS
    ]
    said = [None if own is None else describe_group(own) for own in admitted]
    group = GroupUploads(ranks, method, admitted[1], said, torch.device("cpu"))
    assert group.counts == [2, 1, 0] and group.ids.tolist() == [0, 2, 4]
    whole = group.uploads["model"]
    assert whole.weights.flatten().tolist() == [3.0, 4.0, 1.0] and not whole.copies
    assert (whole.own, whole.per_slot, whole.name) == (False, False, "model")
    assert group.outline("model") == {"w": ["float32", [1]], "n": ["float64", [1]]}
    own = group.weighed("model", torch.tensor([[10.0], [20.0], [30.0]]))
    assert own is not None and own.weights.tolist() == [[20.0]]
    first = GroupUploads(Ranks(0, 3, 1.0), method, admitted[0], said, torch.device("cpu"))
    own = first.weighed("model", torch.tensor([[10.0], [20.0], [30.0]]))
    assert own is not None and own.weights.tolist() == [[30.0], [10.0]]
    last = GroupUploads(Ranks(2, 3, 1.0), method, None, said, torch.device("cpu"))
    assert last.weighed("model", torch.ones(3, 1)) is None


def keeps(client: int) -> Any:
    return {"head": {"w": torch.tensor([float(client)])}}


def test_what_clients_of_other_ranks_keep_is_fetched_shard_by_shard(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Clients 3 and 70 of the first rank, 5 and 130 of the second; shards are of 64 neighbours."""

    def work(ranks: Ranks) -> Any:
        private = {client: keeps(client) for client in ((70, 3) if ranks.first else (130, 5))}
        state = gathered_state(ranks, private)

        def read() -> Any:
            values = {client: state[client]["head"]["w"].item() for client in state}
            return [list(state.shards), [state.members(n) for n in state.shards], values]

        return ranks.lead(read, lambda message: serve_shard(ranks, private, message))

    first, second = play_in_threads(2, work, monkeypatch)
    shards, members, values = first
    assert shards == [0, 1, 2] and members == [[3, 5], [70], [130]]
    assert {int(client): value for client, value in values.items()} == {
        client: float(client) for client in (3, 5, 70, 130)
    }
    assert second[:2] == [shards, members]
    edges = {client: keeps(client) for client in (63, 64, 127, 128)}
    assert list(members_of(edges, 1)) == [64, 127] and list(members_of(edges, 0)) == [63]
