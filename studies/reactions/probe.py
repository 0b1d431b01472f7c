"""Whether the base is pre-trained: classes by ridge regression on the vector of the first token."""

from __future__ import annotations

import torch
from adapters.probe import CHUNK, TEST, TRAIN, probe_features
from reactions.bert import Bert
from reactions.prepare import Material
from torch import Tensor


def probe(material: Material, device: torch.device) -> dict[str, float]:
    """Share of right classes, by the stored weights and by random ones."""
    torch.manual_seed(0)
    rows = torch.randperm(len(material.labels))[: TRAIN + TEST]
    tokens = torch.from_numpy(material.tokens)[rows].to(device)
    labels = torch.from_numpy(material.labels)[rows].to(device)
    random = Bert(material.config).to(device)
    stored = Bert(material.config).to(device)
    stored.load_state_dict(material.base)
    return probe_features(first_vectors(stored, tokens), first_vectors(random, tokens), labels)


@torch.no_grad()
def first_vectors(model: Bert, tokens: Tensor) -> Tensor:
    """[rows, width], in double precision."""
    return torch.cat([model(chunk)[:, 0].double() for chunk in tokens.split(CHUNK)])
