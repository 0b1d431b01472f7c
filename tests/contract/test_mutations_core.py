"""Bugs planted in the core and the engines: the contract checks of our own methods catch each."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from fedblocks.core import aggregate, optimizers, reduction, uploads
from fedblocks.core.admission import Refusal
from fedblocks.core.parts import Blocks, Params
from fedblocks.core.uploads import Upload, Uploads
from fedblocks.engines import close_round as conclusion
from fedblocks.engines import sequential
from fedblocks.engines.job import Job, Trained
from fedblocks.engines.lanes import joined, lanes
from fedblocks.testing import EXAMPLES, Example

Plant = Callable[[pytest.MonkeyPatch], None]


def previous_client(patch: pytest.MonkeyPatch) -> None:
    """A client starts from what the one before it learnt (FedMN, run_fedmd.py)."""
    honest, last = sequential.train_locally, {}

    def train_locally(job: object, local: object, sent: Blocks, *rest: object) -> Trained:
        trained = honest(job, local, {**sent, **last}, *rest)
        last.update(trained.blocks)
        return trained

    patch.setattr(sequential, "train_locally", train_locally)


def unused_becomes_zero(patch: pytest.MonkeyPatch) -> None:
    """A slot that nobody wrote is averaged over nobody (FedMN, averaging.py)."""
    honest = aggregate.reduce_slots

    def reduce_slots(old: Params, upload: Upload) -> tuple[Params, Tensor]:
        new, written = honest({k: torch.zeros_like(v) for k, v in old.items()}, upload)
        return new, torch.ones_like(written)

    patch.setattr(aggregate, "reduce_slots", reduce_slots)


def nan_is_averaged(patch: pytest.MonkeyPatch) -> None:
    """The door is open to everybody."""

    def admit(
        uploads: Uploads, private: Blocks, ids: Tensor, *others: object
    ) -> tuple[Tensor, list[Refusal]]:
        return torch.ones(len(ids), dtype=torch.bool), []

    patch.setattr(conclusion, "admit", admit)


def uniform_weights(patch: pytest.MonkeyPatch) -> None:
    """Clients count alike, an empty one too."""
    honest = uploads._weights
    patch.setattr(uploads, "_weights", lambda *args: torch.ones_like(honest(*args)))


def everybody_is_written(patch: pytest.MonkeyPatch) -> None:
    """What the first client learnt is stored for client 0 and its neighbours, absent or not."""
    honest = conclusion.private_by_client

    def private_by_client(*given: Any) -> dict[int, Blocks]:
        actual = honest(*given)
        return {**dict.fromkeys(range(6), next(iter(actual.values()))), **actual} if actual else {}

    patch.setattr(conclusion, "private_by_client", private_by_client)


def one_copy_counted(patch: pytest.MonkeyPatch) -> None:
    """Traffic is counted as if every pool were a single model."""
    honest = Upload.bytes_up
    patch.setattr(
        Upload, "bytes_up", lambda upload: honest(replace(upload, weights=upload.weights[:, :1]))
    )


def shares_exceed_one(patch: pytest.MonkeyPatch) -> None:
    """Averages are a hundredth too large."""
    honest = aggregate.reduce_slots

    def reduce_slots(old: Params, upload: Upload) -> tuple[Params, Tensor]:
        new, written = honest(old, upload)
        return {k: 1.01 * v for k, v in new.items()}, written

    patch.setattr(aggregate, "reduce_slots", reduce_slots)


def uphill(patch: pytest.MonkeyPatch) -> None:
    """A wrong sign."""
    honest = optimizers.SGD.step
    patch.setattr(
        optimizers.SGD,
        "step",
        lambda self, params, grads, memory, lr, count: honest(
            self, params, grads, memory, -lr, count
        ),
    )


def lanes_in_one_sum(patch: pytest.MonkeyPatch) -> None:
    """All lanes in one product with zeros between them: zero times NaN is NaN."""

    def reduce_by_lane(old: Params, upload: Upload) -> tuple[Params, Tensor]:
        pieces = torch.split(upload.weights, upload.lanes)
        weights = torch.block_diag(*pieces)  # [clients of all lanes, slots of all lanes]
        return reduction.reduce_slots(old, replace(upload, weights=weights, lanes=()))

    patch.setattr(reduction, "_reduce_by_lane", reduce_by_lane)


def lanes_weighed_together(patch: pytest.MonkeyPatch) -> None:
    """Weights are made shares of the sum over all lanes."""
    honest = reduction._reduce_by_lane

    def reduce_by_lane(old: Params, upload: Upload) -> tuple[Params, Tensor]:
        new, written = honest(old, upload)
        share = upload.weights.sum() / torch.stack(
            [own.sum() for own in torch.split(upload.weights, upload.lanes)]
        )
        by_slot = share.repeat_interleave(len(written) // len(upload.lanes))
        scaled = {k: v / by_slot.view(-1, *[1] * (v.dim() - 1)).to(v.dtype) for k, v in new.items()}
        return scaled, written

    patch.setattr(reduction, "_reduce_by_lane", reduce_by_lane)


def lanes_with_the_clients_of_the_first(patch: pytest.MonkeyPatch) -> None:
    """A client's number in its lane is taken for its number among all."""
    honest = lanes.Ground
    patch.setattr(
        lanes, "Ground", lambda data, tables, offsets: honest(data, tables, [0] * len(offsets))
    )


def lanes_with_the_seed_of_the_first(patch: pytest.MonkeyPatch) -> None:
    """All lanes draw their batches and their noise by one seed."""
    patch.setattr(joined.JoinedJob, "origins", Job.origins)


def lanes_with_the_rates_of_the_first(patch: pytest.MonkeyPatch) -> None:
    """Clients of all lanes take steps of one length."""
    patch.setattr(joined.JoinedJob, "rates", Job.rates)


def lanes_cut_in_the_wrong_places(patch: pytest.MonkeyPatch) -> None:
    """What the clients have learnt is handed to the lanes one client too late."""
    honest = lanes.split_trained

    def split_trained(trained: Trained, jobs: Any) -> list[Trained]:
        late = {k: {n: v.roll(1, 0) for n, v in b.items()} for k, b in trained.blocks.items()}
        return honest(replace(trained, blocks=late), jobs)

    patch.setattr(lanes, "split_trained", split_trained)


def lanes_judged_in_the_wrong_order(patch: pytest.MonkeyPatch) -> None:
    """Scores are handed to the lanes from the last to the first."""
    honest = lanes.split_evaluated
    patch.setattr(lanes, "split_evaluated", lambda *args: honest(*args)[::-1])


PLANTED: list[tuple[Plant, str, int]] = [
    (previous_client, "fedavg", 1),
    (unused_becomes_zero, "ifca", 11),
    (nan_is_averaged, "fedavg", 10),
    (nan_is_averaged, "local", 10),
    (uniform_weights, "fedavg", 9),
    (uniform_weights, "fedem", 20),
    (everybody_is_written, "ditto", 5),
    (one_copy_counted, "pfedmb", 8),
    (one_copy_counted, "fedem", 8),
    (shares_exceed_one, "fedavg", 12),
    (uphill, "fedavg", 16),
    (uphill, "fedper", 19),
    (lanes_in_one_sum, "fedavg", 21),
    (lanes_in_one_sum, "fedadam", 21),
    (lanes_weighed_together, "fedavg", 21),
    (lanes_weighed_together, "ifca", 21),
    (lanes_with_the_clients_of_the_first, "fedavg", 21),
    (lanes_with_the_clients_of_the_first, "local", 21),
    (lanes_with_the_seed_of_the_first, "fedavg", 21),
    (lanes_with_the_rates_of_the_first, "ditto", 21),
    (lanes_cut_in_the_wrong_places, "fedper", 21),
    (lanes_judged_in_the_wrong_order, "fedavg", 21),
]


@pytest.mark.parametrize(
    ("plant", "method", "number"), PLANTED, ids=lambda value: getattr(value, "__name__", str(value))
)
def test_a_bug_planted_in_the_core_is_caught(
    plant: Plant,
    method: str,
    number: int,
    monkeypatch: pytest.MonkeyPatch,
    verdict: Callable[[Example, int], str],
) -> None:
    plant(monkeypatch)
    assert verdict(EXAMPLES[method](), number)
