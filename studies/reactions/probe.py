"""Is the base pre-trained? The classes by ridge regression on the vector of the first token."""

from __future__ import annotations

import torch
from reactions.bert import Bert
from reactions.prepare import Material
from torch import Tensor

TRAIN, TEST, CHUNK = 1000, 500, 100
RIDGE = 10.0


def probe(material: Material, device: torch.device) -> dict[str, float]:
    """Share of right classes among TEST reactions, by the stored weights and by random ones."""
    torch.manual_seed(0)
    rows = torch.randperm(len(material.labels))[: TRAIN + TEST]
    tokens = torch.from_numpy(material.tokens)[rows].to(device)
    labels = torch.from_numpy(material.labels)[rows].to(device)
    random = Bert(material.config).to(device)
    stored = Bert(material.config).to(device)
    stored.load_state_dict(material.base)
    majority = labels[:TRAIN].mode().values
    return {
        "stored": score(first_vectors(stored, tokens), labels),
        "random": score(first_vectors(random, tokens), labels),
        "majority": (labels[TRAIN:] == majority).double().mean().item(),
    }


@torch.no_grad()
def first_vectors(model: Bert, tokens: Tensor) -> Tensor:
    """[rows, width], in double precision."""
    return torch.cat([model(chunk)[:, 0].double() for chunk in tokens.split(CHUNK)])


def score(features: Tensor, labels: Tensor) -> float:
    train, test = features[:TRAIN], features[TRAIN:]
    mean, spread = train.mean(0), train.std(0) + 1e-6
    train, test = (train - mean) / spread, (test - mean) / spread
    targets = torch.nn.functional.one_hot(labels[:TRAIN]).double()
    gram = train.mT @ train + RIDGE * torch.eye(train.shape[1], device=train.device)
    weights = torch.linalg.solve(gram, train.mT @ (targets - targets.mean(0)))
    right = (test @ weights + targets.mean(0)).argmax(1) == labels[TRAIN:]
    return right.double().mean().item()
