"""Clipping: a client's whole gradient is shortened, as torch does it, on every engine."""

from copy import deepcopy

import pytest
import torch
from torch import nn

import fedblocks as fb
from fedblocks.core.local_round import clip_gradients
from fedblocks.engines.batching import Draw, batches

NET = fb.small_net()


def trained(method: fb.Method, engine: fb.Engine) -> dict[int, dict[str, torch.Tensor]]:
    experiment = fb.Experiment.of(method, fb.small_federation())
    state, report = fb.run_round(experiment, experiment.start(), range(6), engine)
    assert not report.refusals
    return {client: state.private[client]["model"] for client in range(6)}


def test_clients_train_like_torch_with_clipped_gradients() -> None:
    method = fb.Local(NET, lr=0.5, batch_size=4, epochs=3, clip_norm=1.5)
    own = trained(method, fb.Sequential())
    data = fb.small_federation()
    lengths = []
    for client in range(6):
        module = deepcopy(NET.template)
        module.load_state_dict(start(client))
        for rows in batches(
            method, method.phases()[0], 0, len(data.train[client]), Draw(0, 0, client, "train")
        ):
            at = data.train[client][rows]
            module.zero_grad()
            nn.functional.cross_entropy(module(data.x[at]), data.y[at]).backward()
            lengths.append(float(nn.utils.clip_grad_norm_(module.parameters(), 1.5)))
            with torch.no_grad():
                for p in module.parameters():
                    p -= 0.5 * p.grad
        for name, value in module.named_parameters():
            torch.testing.assert_close(own[client][name], value.detach())
    assert min(lengths) < 1.5 < max(lengths)


def start(client: int) -> dict[str, torch.Tensor]:
    """What a client starts with: one step with a rate of nearly nothing leaves it there."""
    still = fb.Local(NET, lr=1e-300, batch_size=4)
    return trained(still, fb.Sequential())[client]


@pytest.mark.parametrize("name", ["fedavg", "ditto", "pfedmb", "fedprox", "scaffold"])
def test_engines_clip_alike(name: str) -> None:
    make = fb.METHODS[name]
    ends = []
    for engine in (fb.Sequential(), fb.Sequential(replay=False), fb.Vectorised()):
        experiment = fb.Experiment.of(
            make(NET, lr=0.5, batch_size=4, clip_norm=0.2), fb.small_federation()
        )
        ends.append(fb.run_round(experiment, experiment.start(), range(6), engine)[0].server)
    free = fb.Experiment.of(make(NET, lr=0.5, batch_size=4), fb.small_federation())
    other = fb.run_round(free, free.start(), range(6), fb.Sequential())[0].server
    for block, tensors in ends[0].items():
        for key, value in tensors.items():
            torch.testing.assert_close(value, ends[1][block][key], rtol=0, atol=0)
            torch.testing.assert_close(value, ends[2][block][key])
    assert any(not v.equal(other[b][k]) for b, ts in ends[0].items() for k, v in ts.items())


def test_each_client_of_a_stack_has_a_norm_of_its_own() -> None:
    grads = [torch.tensor([[3.0, 0.0], [0.3, 0.0]]), torch.tensor([[4.0], [0.4]])]
    first, second = clip_gradients(grads, 1.0, mapped=True)
    torch.testing.assert_close(first, torch.tensor([[0.6, 0.0], [0.3, 0.0]]))
    torch.testing.assert_close(second, torch.tensor([[0.8], [0.4]]))


def test_a_norm_that_is_not_above_zero_is_refused() -> None:
    with pytest.raises(fb.UserError, match="clip_norm"):
        fb.FedAvg(NET, clip_norm=0.0)
