"""Whether the base is pre-trained: coarse classes by ridge regression on its last features."""

from __future__ import annotations

import torch
from adapters.probe import CHUNK, TEST, TRAIN, probe_features
from images.cells import ImageStudy
from images.lite import Lite0
from torch import Tensor


def probe(work: ImageStudy) -> dict[str, float]:
    """Share of right classes, by the stored weights and by random ones."""
    torch.manual_seed(0)
    rows = torch.randperm(len(work.material.coarse))[: TRAIN + TEST]
    images = torch.from_numpy(work.material.images)[rows].to(work.device)
    labels = torch.from_numpy(work.material.coarse)[rows].to(work.device)
    random = Lite0(work.settings.side, work.classes).to(work.device)
    stored = work.make_module().to(work.device)
    return probe_features(last_features(stored, images), last_features(random, images), labels)


@torch.no_grad()
def last_features(model: Lite0, images: Tensor) -> Tensor:
    """[rows, 1280], in double precision."""
    model.eval()
    return torch.cat([model.features(chunk.float()).double() for chunk in images.split(CHUNK)])
