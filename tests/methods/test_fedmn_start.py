"""FedMN's routing head that starts from groups of first updates: paths, regression, and who goes
where.
"""

from __future__ import annotations

import torch

from fedblocks.data import dataset
from fedblocks.data.federation import Federation
from fedblocks.data.partitions import iid
from fedblocks.data.shifts import joint
from fedblocks.engines.round import Experiment, evaluate_parts, run_round
from fedblocks.engines.vectorised import Vectorised
from fedblocks.methods.fedmn.gates import gates_used, matrices, modules_used
from fedblocks.methods.fedmn.method import FedMN
from fedblocks.methods.fedmn.warm_start import fit_head, path_logits
from fedblocks.nets import mlp
from fedblocks.reports.groups import adjusted_rand


def test_three_groups_get_modules_of_their_own_and_share_where_there_are_fewer() -> None:
    """Modules (1, 3, 2): the encoder is everybody's, each middle block one group's, and of two
    outputs groups 0 and 2 share the first.
    """
    gates = (path_logits(3, (1, 3, 2), torch.zeros(1)) > 0).float()
    used = [[list(layer) for layer in modules_used(matrices(own, (1, 3, 2)))] for own in gates]
    assert used[0][:3] == [[1], [1, 0, 0], [1, 0]]
    assert used[1][:3] == [[1], [0, 1, 0], [0, 1]]
    assert used[2][:3] == [[1], [0, 0, 1], [1, 0]]
    for own in gates:  # no gate leads nowhere
        torch.testing.assert_close(gates_used(own, (1, 3, 2)), own)


def test_the_head_is_the_solution_of_the_ridge_regression() -> None:
    """Where the squared error and 0.1 of the rows' mean squared length times |W|^2 are flat."""
    draw = torch.Generator().manual_seed(0)
    seen = torch.randn(9, 4, generator=draw, dtype=torch.float64) + 3
    wanted = torch.randn(9, 6, generator=draw, dtype=torch.float64)
    weight, bias = (v.clone().requires_grad_() for v in fit_head(seen, wanted))
    ridge = 0.1 * (seen - seen.mean(0)).square().sum(1).mean()
    error = (seen @ weight.T + bias - wanted).square().sum() + ridge * weight.square().sum()
    for slope in torch.autograd.grad(error, [weight, bias]):
        torch.testing.assert_close(slope, torch.zeros_like(slope), rtol=0, atol=1e-10)


def test_clients_of_one_hidden_group_take_one_path_after_the_first_round() -> None:
    """Digits of 12 clients in three groups. A head as drawn finds them with an index below 0.5."""
    pool = dataset("digits").load()
    owned = iid(pool.y.numpy(), 12, seed=0)
    data = joint(Federation.from_arrays(pool.x, pool.y, owned, seed=0), 3, seed=0, keep=0.6)
    net = mlp((1, 8, 8), 10, hidden=(32,))
    rand = {}
    for start in ("drawn", "updates"):
        small = {"modules": (1, 6), "summary_width": 16, "label_width": 8}
        method = FedMN(net, lr=0.3, epochs=3, batch_size=16, router_start=start, **small)
        experiment = Experiment.of(method, data, 0, rounds=4)
        state, everybody = experiment.start(), range(12)
        state, _ = run_round(experiment, state, everybody, Vectorised())
        seen = evaluate_parts(experiment, state, everybody, Vectorised(), ["test"])
        gates = [tuple(seen.portraits["gates"][client]) for client in everybody]
        rand[start] = adjusted_rand(
            data.tags["group"].tolist(), [sorted(set(gates)).index(g) for g in gates]
        )
    assert rand["updates"] == 1.0
    assert rand["drawn"] < 0.5


def test_a_first_round_without_data_leaves_the_head_as_it_was() -> None:
    method = FedMN(mlp((1, 8, 8), 10, hidden=(8,)))
    pool = dataset("digits").load()
    data = Federation.from_arrays(
        pool.x, pool.y, [list(range(40)), []], split=(0.5, 0.0, 0.5), allow_empty=True
    )
    experiment = Experiment.of(method, data, 0, rounds=2)
    start = experiment.start()
    after, _ = run_round(experiment, start, [1], Vectorised())
    for name, value in start.server["router"].items():
        assert torch.equal(after.server["router"][name], value), name
