"""FedMN's pools of the paper: parameter counts, and what its communication figure says of bytes."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedblocks.core.net import Net
from fedblocks.core.pieces import Piece
from fedblocks.core.state import count_bytes
from fedblocks.data.federation import Federation
from fedblocks.data.rows import Rows
from fedblocks.engines.close_round import Report
from fedblocks.engines.round import Experiment, run_round
from fedblocks.engines.sequential import Sequential
from fedblocks.methods.fedavg import FedAvg
from fedblocks.methods.fedmn.method import FedMN
from fedblocks.methods.fedmn.pool import AS_PRINTED
from fedblocks.nets.mobilenet import mobilenet_v2
from fedblocks.nets.modular import figure_mlp, figure_pools, modular, modular_mlp
from fedblocks.nets.papers import femnist_cnn

# the figure does not say which it is of
IMAGES = {"cifar10": ((3, 32, 32), 10), "emnist": ((1, 28, 28), 62)}
CLIENTS, EXAMPLES = 10, 6


def count(piece: Piece | Net) -> int:
    """Parameters, at four bytes each."""
    part = piece if isinstance(piece, Piece) else piece.whole
    return count_bytes({k: v for k, v in part.init(0).items() if "running" not in k}) // 4


def test_the_pool_of_the_cifar10_table_has_the_papers_sizes() -> None:
    """Spec: encoder 2,879,744; middle 131,328; output 2,570; router 2,390,474; with 2
    of each, 8,417,758 in all.
    """
    method = FedMN(mobilenet_v2((3, 32, 32), 10), **AS_PRINTED)
    assert [count(stage) for stage in method.path.stages] == [2_879_744, 131_328, 2_570]
    assert count(method.router.net) == 2_390_474
    assert 2 * (2_879_744 + 131_328 + 2_570) + 2_390_474 == 8_417_758


def test_the_pool_of_the_emnist_table_has_the_papers_sizes() -> None:
    """Spec: encoder 3,200,384; middle 131,328; output 15,934; with 3 of each and the
    router, 12,464,591.
    """
    method = FedMN(femnist_cnn((1, 28, 28), 62), **{**AS_PRINTED, "modules": (3, 3, 3)})
    sizes = [count(stage) for stage in method.path.stages]
    assert sizes == [3_200_384, 131_328, 15_934]
    assert 3 * sum(sizes) + count(method.router.net) == 12_464_591


def test_the_figure_has_pools_of_8_9_and_10_blocks() -> None:
    assert figure_pools(8) == [(1, 2, 5), (1, 3, 4), (1, 4, 3), (1, 5, 2)]
    assert all(sum(pool) == blocks for blocks in (8, 9, 10) for pool in figure_pools(blocks))


@pytest.mark.parametrize("blocks", [8, 9, 10])
@pytest.mark.parametrize("images", IMAGES)
def test_without_the_router_even_a_full_pool_of_the_figure_is_smaller_than_fedavgs_net(
    images: str, blocks: int
) -> None:
    shape, classes = IMAGES[images]
    stages = [count(stage) for stage in modular_mlp(shape, classes).stages]
    fedavg = count(figure_mlp(shape, classes, layers=blocks))
    for pool in figure_pools(blocks):
        assert sum(n * size for n, size in zip(pool, stages, strict=True)) < fedavg


def printed(shape: tuple[int, ...], classes: int, **options: object) -> FedMN:
    """FedMN with the figure's pool of 1 x 4 x 3, as printed."""
    own = {**AS_PRINTED, "modules": (1, 4, 3), "widths": None, **options}
    return FedMN(modular_mlp(shape, classes), **own)  # type: ignore[arg-type]


def round_of(method: FedMN | FedAvg, images: str) -> Report:
    shape, classes = IMAGES[images]
    draw = np.random.Generator(np.random.PCG64(0))
    rows = np.arange(CLIENTS * EXAMPLES)
    x = torch.from_numpy(draw.standard_normal((len(rows), *shape))).float()
    y = torch.from_numpy(draw.integers(0, classes, len(rows)))
    parts = Rows.of(np.split(rows, CLIENTS)), Rows.none(CLIENTS), Rows.none(CLIENTS)
    experiment = Experiment.of(method, Federation(x, y, *parts, classes=classes))
    return run_round(experiment, experiment.start(), range(CLIENTS), Sequential())[1]


def travelled(report: Report, *without: str) -> tuple[int, int]:
    """Bytes down and up of all clients."""
    ways = (report.bytes_down, report.bytes_up)
    down, up = (
        sum(sum(by.values()) for name, by in way.items() if name not in without) for way in ways
    )
    return down, up


def test_fedmn_sends_fewer_bytes_than_fedavg_in_the_figures_setting() -> None:
    """One encoder, [1 x 4 x 3] against an 8-layer perceptron, 256 units, router of one
    layer and all.
    """
    fedmn = round_of(printed(*IMAGES["emnist"]), "emnist")
    fedavg = round_of(FedAvg(figure_mlp(*IMAGES["emnist"])), "emnist")
    assert travelled(fedavg)[0] == CLIENTS * 4 * (
        784 * 256 + 256 + 6 * (256 * 256 + 256) + 256 * 62 + 62
    )
    assert all(
        ours < theirs for ours, theirs in zip(travelled(fedmn), travelled(fedavg), strict=True)
    )


def test_on_larger_images_that_holds_only_if_the_router_is_not_counted() -> None:
    """A router of 3072 x 128 weights is more than what closed gates save; a narrow one is not."""
    shape, classes = IMAGES["cifar10"]
    fedmn = round_of(printed(shape, classes), "cifar10")
    fedavg = round_of(FedAvg(figure_mlp(shape, classes)), "cifar10")
    narrow = round_of(printed(shape, classes, summary_width=32), "cifar10")
    assert travelled(fedmn)[0] > travelled(fedavg)[0] > travelled(narrow)[0]
    assert travelled(fedmn, "router")[0] < travelled(fedavg)[0]


def test_closed_gates_can_save_little_where_encoders_are_large() -> None:
    """Spec: at most 3.2 % of the 8,417,758 numbers of the CIFAR-10 table, encoders and
    router being always sent.
    """
    closable = 2 * sum(count(stage) for stage in modular(mobilenet_v2((3, 32, 32), 10)).stages[1:])
    assert closable / 8_417_758 == pytest.approx(0.032, abs=0.0005)
