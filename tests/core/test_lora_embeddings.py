"""Adapters of embeddings: the row of the padding word stays as it is, as in torch."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import fedblocks as fb

SOURCE = torch.Generator().manual_seed(0)
TOKENS = torch.randint(1, 11, (80, 6), generator=SOURCE)
TOKENS[:, 4:] = 0
DATA = fb.Federation.from_users(TOKENS, torch.arange(80) % 5, torch.arange(80) % 4)


class Words(nn.Module):
    def __init__(self, padding: int | None = 0) -> None:
        super().__init__()
        self.words, self.out = nn.Embedding(11, 8, padding_idx=padding), nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.out(self.words(x).mean(1))
        return y


def made() -> Words:
    torch.manual_seed(3)
    module = Words()
    with torch.no_grad():
        module.words.weight[0] = 0.7  # a padding word may have a row that is not zero
    return module


KINDS = {
    "average": lambda net: fb.FedAvgLoRA(net, head="shared", lr=1.0),
    "svd": lambda net: fb.ProductLoRA(net, head="shared", lr=1.0),
    "stack": lambda net: fb.ProductLoRA(net, head="shared", lr=1.0, keep="stack"),
    "residual": lambda net: fb.ProductLoRA(net, head="shared", lr=1.0, keep="residual"),
}


@pytest.mark.parametrize("engine", ["sequential", "vectorised"])
@pytest.mark.parametrize("kind", KINDS)
def test_the_row_of_the_padding_word_stays(kind: str, engine: str, tmp_path: Path) -> None:
    method = KINDS[kind](fb.lora(made(), rank=3, targets=("words",), head="out"))
    run = fb.run(method, DATA, rounds=3, out=tmp_path / "run", engine=engine)
    model = fb.personal(run, 0, method, DATA)
    weights = model.merged()["words.weight"]
    assert torch.equal(weights[0], made().words.weight[0])
    assert not torch.allclose(weights[1:], made().words.weight[1:], atol=1e-3)
    own = made()
    own.load_state_dict(model.merged())
    torch.testing.assert_close(own(TOKENS), model.predict(TOKENS), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", ["average", "stack", "residual"])  # "svd" has those of a product
def test_every_method_starts_the_factors_of_an_embedding_alike(kind: str, tmp_path: Path) -> None:
    net = fb.lora(made(), rank=3, targets=("words",), head="out")
    method = KINDS[kind](net)
    still = type(method)(**{**vars(method), "lr": 1e-30, "net": net})
    run = fb.run(still, DATA, rounds=1, out=tmp_path / "run", engine="sequential")
    blocks = fb.personal(run, 0, still, DATA).blocks
    factors = {**blocks["lora.A"], **blocks["lora.B"]}
    assert 0.5 < float(factors["words.lora_B"].std()) < 1.5  # normal, 24 numbers
    assert float(factors["words.lora_A"].abs().max()) < 1e-20
