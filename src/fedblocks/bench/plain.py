"""The yardstick: federated averaging as one would write it by hand in PyTorch, a loop
over clients, nothing of ours.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedblocks.bench.materials import LR, Materials


class PlainLoop:
    """One model that visits every client of the cohort in turn; the data are on the
    device already.
    """

    def __init__(self, materials: Materials) -> None:
        data = materials.experiment.data
        device = data.device
        self.x, self.y = data.x, data.y
        self.batch = materials.job.batch
        self.model: nn.Module = materials.net.make().to(device)
        self.state = {k: v.clone() for k, v in self.model.state_dict().items()}
        self.train = [torch.from_numpy(data.train[i]).to(device) for i in materials.cohort]
        tested = materials.cohort if materials.job.tests else []
        self.test = [torch.from_numpy(data.test[i]).to(device) for i in tested]

    def round(self) -> int:
        """Train every client, average; the number of examples trained on."""
        total = sum(len(rows) for rows in self.train)
        mean = {k: torch.zeros_like(v) for k, v in self.state.items()}
        for rows in self.train:
            self.visit(rows)
            for name, value in self.model.state_dict().items():
                mean[name] += (value * (len(rows) / total)).to(value.dtype)
        self.state = mean
        self._evaluate()
        return total

    def visit(self, rows: Tensor) -> None:
        """One client: the shared weights, then an epoch on its rows."""
        self.model.load_state_dict(self.state)
        self.model.train()
        optimizer = torch.optim.SGD(self.model.parameters(), lr=LR)
        for batch in torch.split(rows[torch.randperm(len(rows), device=rows.device)], self.batch):
            optimizer.zero_grad()
            logits = self.model(self.x[batch])
            loss = F.cross_entropy(logits.movedim(-1, 1), self.y[batch])
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()

    @torch.no_grad()
    def _evaluate(self) -> None:
        """Correct answers of every client's test examples."""
        if not self.test:
            return
        self.model.load_state_dict(self.state)
        self.model.eval()
        self.correct = [
            (self.model(self.x[rows]).argmax(-1) == self.y[rows]).sum() for rows in self.test
        ]
