"""How much the features of a base say of the classes: a ridge regression on them."""

from __future__ import annotations

import torch
from torch import Tensor

TRAIN, TEST, CHUNK = 1000, 500, 100
RIDGE = 10.0


def probe_features(stored: Tensor, random: Tensor, labels: Tensor) -> dict[str, float]:
    """Share of right classes among TEST rows, by the features of the stored weights and by those
    of random ones: [TRAIN + TEST, width] each.
    """
    majority = labels[:TRAIN].mode().values
    return {
        "stored": score(stored, labels),
        "random": score(random, labels),
        "majority": (labels[TRAIN:] == majority).double().mean().item(),
    }


def score(features: Tensor, labels: Tensor) -> float:
    train, test = features[:TRAIN], features[TRAIN:]
    mean, spread = train.mean(0), train.std(0) + 1e-6
    train, test = (train - mean) / spread, (test - mean) / spread
    targets = torch.nn.functional.one_hot(labels[:TRAIN]).double()
    gram = train.mT @ train + RIDGE * torch.eye(train.shape[1], device=train.device)
    weights = torch.linalg.solve(gram, train.mT @ (targets - targets.mean(0)))
    right = (test @ weights + targets.mean(0)).argmax(1) == labels[TRAIN:]
    return right.double().mean().item()
