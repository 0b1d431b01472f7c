"""Nets with dropout, with BatchNorm, and on texts of unequal length, against plain PyTorch loops
that draw their batches and their noise by docs/randomness.md.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from fedblocks.core.net import Net
from fedblocks.core.optimizers import SGD
from fedblocks.data.federation import Federation
from fedblocks.data.rows import Rows
from fedblocks.engines.round import evaluate_parts
from fedblocks.methods import METHODS

from . import module_methods, module_pfedmb
from .autograd import IGNORE
from .definition import Course
from .harness import (
    CLASSES,
    ENGINES,
    FEATURES,
    SEED,
    SIZES,
    TEST_SIZES,
    _numbered,
    agrees,
    federation,
    initial,
    plans,
    play,
    same_evaluations,
)
from .module_methods import Setting
from .modules import KeyedDropout, Loop
from .plain import Outcome, Task

WORDS, LENGTH = 7, 6
LR, MOMENTUM = 0.1, 0.5


def dropping(*dropouts: nn.Module) -> nn.Module:
    """Two layers of dropout; the first draws before the second."""
    below, above = dropouts or (nn.Dropout(0.3), nn.Dropout(0.5))
    hidden = [nn.Linear(FEATURES, 9), nn.ReLU(), below, nn.Linear(9, 8), nn.ReLU(), above]
    return nn.Sequential(*hidden, nn.Linear(8, CLASSES))


def normed() -> nn.Module:
    first = [nn.Linear(FEATURES, 7), nn.BatchNorm1d(7), nn.ReLU()]
    second = [nn.Linear(7, 6), nn.BatchNorm1d(6, momentum=0.3), nn.ReLU()]
    return nn.Sequential(*first, *second, nn.Linear(6, CLASSES))


def normed_images() -> nn.Module:
    layers = [nn.Conv2d(2, 3, 2), nn.BatchNorm2d(3), nn.ReLU(), nn.Flatten()]
    return nn.Sequential(*layers, nn.Linear(3 * 2 * 3, CLASSES))


def reading() -> nn.Module:
    """Logits for every token: [batch, LENGTH, WORDS]."""
    layers = [nn.Embedding(WORDS, 4), nn.Linear(4, 6), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(6, WORDS))


def unequal_texts() -> Federation:
    """Texts of 0 to LENGTH labels; tokens behind the last are drawn like the others, so that they
    would matter if they were scored.
    """
    draw = np.random.Generator(np.random.PCG64(11))
    train, rows = _numbered(SIZES, 0)
    test, rows = _numbered(TEST_SIZES, rows)
    x = draw.integers(0, WORDS, (rows, LENGTH))
    y = (x + draw.integers(1, 3, (rows, 1))) % WORDS
    y[np.arange(LENGTH) >= draw.integers(0, LENGTH + 1, rows)[:, None]] = IGNORE
    y[train[3]] = IGNORE  # all of client 3
    parts = Rows.of(train), Rows.none(len(SIZES)), Rows.of(test)
    return Federation(torch.from_numpy(x), torch.from_numpy(y), *parts, classes=WORDS)


@dataclass(frozen=True)
class Kind:
    """A net for the library, the same for the loop, and data."""

    net: Callable[[], nn.Module]
    plain: Callable[[], nn.Module]
    data: Callable[[], Federation]
    head: str  # names of the last layer begin so
    layers: tuple[str, ...]  # that have branches


KINDS = {
    "dropout": Kind(
        dropping,
        lambda: dropping(KeyedDropout(0.3, draw=1), KeyedDropout(0.5, draw=2)),
        federation,
        "6.",
        ("0", "3", "6"),
    ),
    "norms": Kind(normed, normed, federation, "6.", ("0", "3", "6")),
    "norms of images": Kind(
        normed_images, normed_images, lambda: federation((2, 3, 4)), "4.", ("0", "4")
    ),
    "texts": Kind(reading, reading, unequal_texts, "3.", ("0", "1", "3")),
}
TWICE, THRICE = Course(epochs=2), Course(epochs=3)
LITERAL: dict[str, Any] = {"start": "independent", "lr_scale": "printed"}  # pFedMB as printed
# options; courses in a round, before an evaluation, when a client joins; the loop
CASES: dict[str, tuple[dict[str, Any], tuple[list[Course], ...], Callable[..., Outcome]]] = {
    "fedavg": ({}, ([TWICE], [], []), lambda s, kind: module_methods.fedavg(s)),
    "fedavg_ft": (
        {"tune_epochs": 3},
        ([TWICE], [THRICE], [THRICE]),
        lambda s, kind: module_methods.fedavg(s),
    ),
    "fedper": ({}, ([TWICE], [], [TWICE]), lambda s, kind: module_methods.fedper(s, kind.head)),
    "ditto": (
        {"strength": 0.6, "personal_epochs": 3, "personal_lr": 0.05},
        ([THRICE, TWICE], [], [THRICE]),
        lambda s, kind: module_methods.ditto(s, 0.6, lambda t: 0.05),
    ),
    "ifca": ({"clusters": 3}, ([TWICE], [], []), lambda s, kind: module_methods.ifca(s, 3)),
    "fedem": ({"components": 2}, ([TWICE], [], []), lambda s, kind: module_methods.fedem(s, 2)),
    "pfedmb": (
        {"branches": 2, "alpha_lr": 0.9, "alpha_epochs": 3, **LITERAL},
        ([THRICE, TWICE], [THRICE, TWICE], [THRICE, TWICE]),
        lambda s, kind: module_pfedmb.run(s, kind.layers, 2, lambda t: 0.9),
    ),
}


def made(name: str, kind: Kind, **more: Any) -> Any:
    shape = tuple(kind.data().x.shape[1:])
    net = Net.of(kind.net, dtype=torch.float64, input_shape=shape)
    # 7: no batch of a single example, which torch's BatchNorm refuses
    options = {"lr": LR, "epochs": 2, "batch_size": 7, "optimizer": SGD(momentum=MOMENTUM)}
    return METHODS[name](net=net, **options, **CASES[name][0], **more)


def setting(name: str, kind: Kind, method: Any) -> Setting:
    data = kind.data()
    x, y = data.x.numpy(), data.y.numpy()
    train, adapt, join = CASES[name][1]
    task = Task(
        [initial(kind.plain, slot) for slot in range(3)],
        [(x[rows], y[rows]) for rows in data.train],
        [(x[rows], y[rows]) for rows in data.test],
        **plans(method, SIZES, train, adapt, join),
    )
    return Setting(task, Loop(kind.plain, MOMENTUM), SEED, lambda t: LR)


@cache
def expected(name: str, net: str) -> Outcome:
    kind = KINDS[net]
    return CASES[name][2](setting(name, kind, made(name, kind)), kind)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("net", KINDS)
@pytest.mark.parametrize("name", CASES)
def test_two_rounds_are_those_of_a_plain_loop(name: str, net: str, engine: str) -> None:
    kind = KINDS[net]
    agrees(made(name, kind), expected(name, net), ENGINES[engine], kind.data())


@pytest.mark.parametrize("engine", ENGINES)
def test_statistics_that_stay_on_the_client_are_its_own(engine: str) -> None:
    kind = KINDS["norms"]
    method = made("fedavg", kind, statistics="local")
    outcome = module_methods.fedavg_local_statistics(setting("fedavg", kind, method))
    agrees(method, outcome, ENGINES[engine], kind.data())


def test_the_nets_and_the_texts_are_hard_enough() -> None:
    """Noise and statistics matter, labels are missing in every way, and clients choose
    differently.
    """
    dropped, data = expected("fedavg", "dropout"), unequal_texts()
    kind = KINDS["dropout"]
    without = Loop(dropping, MOMENTUM)  # torch's own dropout, whose masks are others
    s = setting("fedavg", kind, made("fedavg", kind))
    other = module_methods.fedavg(Setting(s.task, without, SEED, s.rate))
    weight = lambda outcome: outcome.server["model"][0]["0.weight"]
    assert np.abs(weight(dropped) - weight(other)).max() > 1e-3
    running = expected("fedavg", "norms").server["model"][0]["1.running_var"]
    assert np.abs(running - 1).min() > 0.05
    labels = (data.y != IGNORE).sum(1)
    assert {0, 1, LENGTH} <= set(labels.tolist())


@pytest.mark.parametrize("engine", ENGINES)
def test_texts_are_counted_by_their_scored_labels_in_every_part(engine: str) -> None:
    kind = KINDS["texts"]
    method = made("fedavg", kind)
    experiment, state = play(method, ENGINES[engine], kind.data())
    seen = evaluate_parts(experiment, state, range(len(SIZES)), ENGINES[engine], ("train", "test"))
    assert seen.scores["train"]["personal"][3] == (0, 0, 0)
    assert seen.scores["train"]["personal"][4] == (0, 0, 0)
    s = setting("fedavg", kind, method)
    w = {k: torch.from_numpy(v) for k, v in expected("fedavg", "texts").server["model"][0].items()}
    for part, pairs in (("train", s.task.train), ("test", s.task.test)):
        z = {i: s.loop.logits(w, torch.from_numpy(x)).numpy() for i, (x, _) in enumerate(pairs)}
        same_evaluations(seen.scores[part], {"personal": z}, kind.data(), part)
