"""Limits in which methods over adapters are one another, FedAvg, or nothing at all; in float64, and
no layer is square.
"""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from torch import nn

import fedblocks as fb
from fedblocks.core.errors import UserError
from fedblocks.core.random import derive
from fedblocks.core.uploads import Upload
from fedblocks.data.rows import Rows
from fedblocks.engines.round import Experiment, evaluate, run_round
from fedblocks.engines.sequential import Sequential
from fedblocks.engines.vectorised import Vectorised

DOUBLE = torch.float64
EVERYBODY = range(6)
RANK, ALPHA = 2, 3.0


def module() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(
        nn.Linear(6, 7), nn.Tanh(), nn.Linear(7, 5), nn.Tanh(), nn.Linear(5, 4)
    ).double()


def adapted(rank: int = RANK, alpha: float = ALPHA) -> fb.LoraNet:
    return fb.lora(module(), rank, alpha, targets=("0", "2"), head="4", dtype=DOUBLE)


USUAL = {"lr": 0.2, "batch_size": 4, "epochs": 2}
ALL = {
    "fedavg": lambda net, **o: fb.FedAvgLoRA(net, **{**USUAL, "head": "shared", **o}),
    "ffa": lambda net, **o: fb.FFALoRA(net, **{**USUAL, "head": "shared", **o}),
    "rolora": lambda net, **o: fb.FFALoRA(
        net, **{**USUAL, "head": "shared", "turns": "alternate", **o}
    ),
    "fedsa": lambda net, **o: fb.FedSALoRA(net, **{**USUAL, "head": "private", **o}),
    "svd": lambda net, **o: fb.ProductLoRA(net, **{**USUAL, "head": "shared", **o}),
    "stack": lambda net, **o: fb.ProductLoRA(
        net, **{**USUAL, "head": "shared", "keep": "stack", **o}
    ),
    "residual": lambda net, **o: fb.ProductLoRA(
        net, **{**USUAL, "head": "shared", "keep": "residual", **o}
    ),
    "dual": lambda net, **o: fb.DualLoRA(net, **{**USUAL, "head": "private", **o}),
    "final": lambda net, **o: fb.DualLoRA(
        net, **{**USUAL, "head": "private", "order": "final", **o}
    ),
    "rest": lambda net, **o: fb.DualLoRA(net, **{**USUAL, "head": "private", "other": "rest", **o}),
}


def after(method, federation=None, rounds=2, clients=EVERYBODY, engine=None):
    experiment = Experiment.of(method, federation or fb.small_federation())
    state = experiment.start()
    for _ in range(rounds):
        state, _ = run_round(experiment, state, clients, engine or Vectorised())
    experiment.frozen.check()
    return state


def close(one, other, bound=1e-12):
    assert one.keys() == other.keys()
    for name in one:
        torch.testing.assert_close(one[name], other[name], rtol=bound, atol=bound)


def factors(state) -> fb.Params:
    return {k: v[0] for b in ("lora.A", "lora.B") for k, v in state.server[b].items()}


# 1. one client, and clients that are all the same


def test_one_client_is_plain_local_training_of_its_adapter() -> None:
    data = fb.small_federation(sizes=(10,))
    net = adapted()
    shared = after(ALL["fedavg"](net), data, clients=[0])
    alone = after(fb.Local(net, **USUAL), data, clients=[0]).private[0]["model"]
    together = {k: v[0] for block in shared.server.values() for k, v in block.items()}
    close(together, alone)
    own = after(ALL["fedsa"](net), data, clients=[0])
    fedsa = {**own.server["lora.A"], **own.private[0]["lora.B"], **own.private[0]["head"]}
    close({k: v[0] if "lora_A" in k else v for k, v in fedsa.items()}, alone)
    # beside a rest of nobody one's own adapter is all there is
    rest = after(ALL["rest"](net), data, clients=[0]).private[0]
    close(fb.join(rest["own.A"], rest["own.B"], rest["head"]), alone)


def twins(count: int) -> fb.Federation:
    """Clients with the same rows, which all fit in one batch, so that its order does not matter."""
    one = fb.small_federation(sizes=(8,))
    rows = {part: Rows.of([own[0]] * count) for part, own in one.parts.items()}
    return fb.Federation(one.x, one.y, **rows, classes=one.classes)


@pytest.mark.parametrize("name", ["fedavg", "ffa", "rolora", "fedsa", "svd", "residual", "dual"])
def test_clients_that_are_the_same_are_one_client(name: str) -> None:
    several = after(ALL[name](adapted(), batch_size=20), twins(4), clients=range(4))
    one = after(ALL[name](adapted(), batch_size=20), twins(1), clients=[0])
    for block in several.server:
        close(several.server[block], one.server[block], 1e-10)
    for block, params in (one.private[0] if one.private else {}).items():
        close(several.private[3][block], params, 1e-10)


# 2. the error of averaging factors is their covariance


def uploaded(method, state, experiment):
    """What clients send of both factors: [clients, ...], and their shares."""
    seen = {}

    class Listening(type(method)):
        def conclude(self, server, before, uploads, cohort):
            seen.update(uploads)
            return super().conclude(server, before, uploads, cohort)

    listening = Listening(net=method.net, **method.options())
    run_round(Experiment.of(listening, experiment.data), state, EVERYBODY, Vectorised())
    first: Upload = seen["lora.B"]
    shares = first.weights[:, 0] / first.weights[:, 0].sum()
    down = seen["lora.A"].copies if "lora.A" in seen else None
    return down, first.copies, shares


def test_the_mean_of_products_differs_from_the_product_of_means_by_the_covariance() -> None:
    net = adapted()
    method = ALL["fedavg"](net)
    experiment = Experiment.of(method, fb.small_federation())
    down, up, p = uploaded(method, experiment.start(), experiment)
    for path in net.targets:
        a, b = down[f"{path}.lora_A"], up[f"{path}.lora_B"]
        mean = lambda v: torch.tensordot(p, v, 1)
        gap = mean(b @ a) - mean(b) @ mean(a)
        covariance = mean((b - mean(b)) @ (a - mean(a)))
        torch.testing.assert_close(gap, covariance, rtol=1e-12, atol=1e-14)
        assert gap.abs().max() > 1e-4


def test_with_a_frozen_factor_the_mean_of_products_is_the_product_of_means() -> None:
    net = adapted()
    method = ALL["ffa"](net)
    experiment = Experiment.of(method, fb.small_federation())
    _, up, p = uploaded(method, experiment.start(), experiment)
    state, _ = run_round(experiment, experiment.start(), EVERYBODY, Vectorised())
    a = net.lora_A.init(derive(0, "init", 0))
    for path in net.targets:
        exact = torch.tensordot(p, up[f"{path}.lora_B"] @ a[f"{path}.lora_A"], 1)
        model = state.server["lora.B"][f"{path}.lora_B"][0] @ a[f"{path}.lora_A"]
        torch.testing.assert_close(model, exact, rtol=1e-13, atol=1e-15)


# 3. one step from B = 0


def test_one_local_step_of_both_factors_moves_b_alone() -> None:
    options = {"batch_size": 100, "epochs": 1}
    both = after(ALL["fedavg"](adapted(), **options), rounds=1)
    frozen = after(ALL["ffa"](adapted(), **options), rounds=1)
    close(both.server["lora.B"], frozen.server["lora.B"])
    start = adapted().lora_A.init(derive(0, "init", 0))
    # sums of shares are not quite 1, and the factor itself is the same bit for bit on every client
    close({k: v[0] for k, v in both.server["lora.A"].items()}, start, 1e-15)


# 4. full rank


@dataclass(frozen=True, eq=False)
class Orthogonal:
    """The factor A of full rank: a rotation."""

    net: fb.LoraNet

    def init(self, seed: int) -> fb.Params:
        source = torch.Generator().manual_seed(4)
        draw = lambda n: torch.randn(n, n, generator=source, dtype=DOUBLE)
        return {k: torch.linalg.qr(draw(v.shape[1]))[0] for k, v in self.net.lora_A.init(0).items()}


class FullRank(fb.FFALoRA):
    def blocks(self):
        return {**super().blocks(), "lora.A": fb.Frozen(Orthogonal(self.net))}


@dataclass(frozen=True, eq=False)
class WeightAlone(fb.Method):
    """FedAvg of one weight matrix; its bias rests."""

    def blocks(self):
        bias = self.net.piece(["0.bias"])
        return {"bias": fb.Frozen(bias), "weight": fb.Shared(self.net.piece(["0.weight"]))}

    def predict(self, blocks, x):
        return self.net(fb.join(blocks["bias"], blocks["weight"]), x)

    def phases(self):
        return [fb.Phase((self.step("weight"),), self.epochs)]


@pytest.mark.parametrize("scale", [1.0, 2.0])
def test_ffa_of_full_rank_is_fedavg_of_the_weights(scale: float) -> None:
    torch.manual_seed(2)
    layer = nn.Sequential(nn.Linear(6, 9)).double()  # 9 classes, of which 4 occur
    net = fb.lora(layer, rank=6, alpha=6 * scale, targets="0", dtype=DOUBLE)
    data = fb.small_federation()
    lora = FullRank(net, lr=0.3 / scale**2, batch_size=4, epochs=2)
    state = after(lora, data, rounds=3)
    a = Orthogonal(net).init(0)["0.lora_A"]
    weight = layer[0].weight + scale * state.server["lora.B"]["0.lora_B"][0] @ a
    plain = fb.Net.of(layer, keep_weights=True, dtype=DOUBLE)
    full = after(WeightAlone(plain, lr=0.3, batch_size=4, epochs=2), data, rounds=3)
    expected = full.server["weight"]["0.weight"][0]
    torch.testing.assert_close(weight, expected, rtol=1e-12, atol=1e-12)
    assert (expected - layer[0].weight).abs().max() > 0.1


# 5. products


def effective(method, state) -> fb.Params:
    """What has been added to the weights of each layer after a round."""
    change = method.net.changes(factors(state))
    if method.keep == "stack":
        change = {path: 0 * value for path, value in change.items()}
    delta = state.server.get("delta", {})
    return {path: v + (delta[path][0] if delta else 0) for path, v in change.items()}


@pytest.mark.parametrize("name", ["stack", "residual"])
def test_the_weights_are_the_base_and_the_mean_of_products(name: str) -> None:
    method = ALL[name](adapted())
    experiment = Experiment.of(method, fb.small_federation())
    down, up, p = uploaded(method, experiment.start(), experiment)
    state, _ = run_round(experiment, experiment.start(), EVERYBODY, Vectorised())
    mean = {
        path: torch.tensordot(p, value, 1)
        for path, value in method.net.changes({**down, **up}).items()
    }
    close(effective(method, state), mean)


@pytest.mark.parametrize(("rank", "exact"), [(5, True), (2, False)])
def test_the_error_of_the_best_factors_is_the_tail_of_the_spectrum(rank: int, exact: bool) -> None:
    method = ALL["svd"](adapted(rank))
    experiment = Experiment.of(method, fb.small_federation())
    down, up, p = uploaded(method, experiment.start(), experiment)
    state, _ = run_round(experiment, experiment.start(), EVERYBODY, Vectorised())
    for path, value in method.net.changes({**down, **up}).items():
        mean = torch.tensordot(p, value, 1)
        tail = torch.linalg.svdvals(mean)[rank:].square().sum().sqrt()
        gap = (mean - effective(method, state)[path]).norm()
        torch.testing.assert_close(gap, tail, rtol=1e-8, atol=1e-12)
        assert exact or tail > 1e-3


def test_nothing_is_missed_where_all_clients_have_the_same_factor() -> None:
    # one local step leaves A as it was, for everybody
    method = ALL["residual"](adapted(), batch_size=100, epochs=1)
    state = after(method, rounds=1)
    for value in state.server["delta"].values():
        assert value.abs().max() < 1e-15


# 6. factors are defined up to a rotation


@pytest.mark.parametrize(
    ("name", "moved"), [("svd", False), ("stack", False), ("residual", False), ("fedavg", True)]
)
def test_rotating_each_clients_factors_changes_averages_of_factors_alone(
    name: str, moved: bool
) -> None:
    plain = ALL[name](adapted(), epochs=1)

    class Rotating(type(plain)):
        def finish(self, blocks, start, client):
            blocks = super().finish(blocks, start, client)
            angle = client.id.to(DOUBLE) + 1
            row = lambda *values: torch.stack(values)
            q = torch.stack([row(angle.cos(), angle.sin()), row(-angle.sin(), angle.cos())])
            down = {k: q @ v for k, v in blocks["lora.A"].items()}
            up = {k: v @ q.mT for k, v in blocks["lora.B"].items()}
            return {**blocks, "lora.A": down, "lora.B": up}

    rotating = Rotating(net=plain.net, **plain.options())
    one, other = (after(method, rounds=1) for method in (plain, rotating))
    add = effective if name != "fedavg" else lambda m, s: m.net.changes(factors(s))
    before, now = add(plain, one), add(rotating, other)
    apart = max(float((before[k] - now[k]).abs().max()) for k in before)
    assert (apart > 1e-4) if moved else (apart < 1e-12)


# 7. nothing trained


@pytest.mark.parametrize("name", ALL)
def test_without_training_every_model_is_the_base(name: str) -> None:
    method = ALL[name](adapted(), lr=1e-300)  # no number moves by so little
    data = fb.small_federation()
    experiment = Experiment.of(method, data)
    state = after(method, data)
    scores = evaluate(experiment, state, EVERYBODY, Sequential())["personal"]
    logits = module()(data.x)
    for client in EVERYBODY:
        rows = data.test[client]
        loss = nn.functional.cross_entropy(logits[rows], data.y[rows], reduction="sum")
        assert scores[client][2] == pytest.approx(float(loss.detach()), rel=1e-12)


# 8. a shared factor that does not move carries nothing


class ResidentA(fb.FedSALoRA):
    def phases(self):
        return [fb.Phase((self.step("lora.B", "head"),), self.epochs)]


def test_a_shared_factor_at_rest_is_local_training_of_the_other() -> None:
    together = after(ResidentA(adapted(), **USUAL, head="private"))
    for client in (0, 3):
        alone = after(ResidentA(adapted(), **USUAL, head="private"), clients=[client])
        for block in ("lora.B", "head"):
            close(together.private[client][block], alone.private[client][block])


# 9. two adapters


def test_without_ones_own_the_averaged_adapter_is_fedavgs() -> None:
    net = fb.lora(module(), RANK, ALPHA, targets=("0", "2"), dtype=DOUBLE)  # a head at rest
    dual = after(fb.DualLoRA(net, **USUAL))
    # the phase has the second place in the round, and its batches are drawn for that place
    final = after(fb.DualLoRA(net, **USUAL, order="final"))
    plain = after(fb.FedAvgLoRA(net, **USUAL))
    for block in ("lora.A", "lora.B"):
        close(final.server[block], plain.server[block])
        assert dual.server[block].keys() == plain.server[block].keys()


class OwnAlone(fb.DualLoRA):
    def phases(self):
        return [self.own_phase()]


def test_without_the_averaged_adapter_ones_own_is_local() -> None:
    net = adapted()
    own = after(OwnAlone(net, **USUAL, head="private"))
    local = after(fb.Local(net, **USUAL))
    for client in EVERYBODY:
        kept = own.private[client]
        mine = fb.join(kept["own.A"], kept["own.B"], kept["head"])
        close(mine, local.private[client]["model"])


def test_of_two_clients_each_reads_the_others_adapter() -> None:
    data = fb.small_federation(sizes=(8, 6))
    method = ALL["rest"](adapted())
    experiment = Experiment.of(method, data)
    state = after(method, data, clients=[0, 1])
    job = experiment.training_job("all", [0, 1], state)
    for block, own in (("lora.A", "own.A"), ("lora.B", "own.B")):
        for reader, other in ((0, 1), (1, 0)):
            for key, value in job.sent.blocks[block].items():
                torch.testing.assert_close(value[reader], state.private[other][own][key])


# 10. ranks of the clients' own


def test_a_padded_rank_is_the_rank_itself() -> None:
    data = fb.small_federation(sizes=(10,))
    small = adapted(rank=2, alpha=3.0)
    padded = fb.FedAvgLoRA(adapted(rank=5, alpha=3.0), **USUAL, head="shared", ranks=(2,))
    start = small.init(derive(0, "init", 0))

    class Begun(type(padded)):
        def prepare(self, blocks, client):
            """The same start: the first rows of A are those of the small net."""
            down = {
                k: torch.cat([start[k], torch.zeros(3, v.shape[-1], dtype=DOUBLE)])
                for k, v in blocks["lora.A"].items()
            }
            return super().prepare({**blocks, "lora.A": down}, client)

    wide = after(Begun(net=padded.net, **padded.options()), data, rounds=1, clients=[0])
    narrow = after(ALL["fedavg"](small), data, rounds=1, clients=[0])
    for path in small.targets:
        a, b = (
            wide.server["lora.A"][f"{path}.lora_A"][0],
            wide.server["lora.B"][f"{path}.lora_B"][0],
        )
        torch.testing.assert_close(a[:2], narrow.server["lora.A"][f"{path}.lora_A"][0])
        # in units of the wide net's scale alpha / 5, which the small net's alpha / 2 exceeds
        torch.testing.assert_close(b[:, :2] * 2 / 5, narrow.server["lora.B"][f"{path}.lora_B"][0])
        assert not a[2:].any() and not b[:, 2:].any()


@pytest.mark.parametrize("name", ["fedavg", "svd", "residual", "stack"])
def test_ranks_that_are_all_the_nets_are_no_ranks(name: str) -> None:
    one = after(ALL[name](adapted()))
    other = after(ALL[name](adapted(), ranks=(RANK, RANK, RANK)))
    for block in one.server:
        close(one.server[block], other.server[block])


@pytest.mark.parametrize("name", ["fedavg", "svd", "residual", "stack"])
def test_engines_agree_on_ranks(name: str) -> None:
    make = lambda: ALL[name](adapted(rank=4), ranks=(4, 1, 2))
    one, other = after(make(), engine=Sequential()), after(make(), engine=Vectorised(chunk=4))
    same = after(ALL[name](adapted(rank=4)))
    for block in one.server:
        close(one.server[block], other.server[block], 1e-10)
    assert not torch.allclose(one.server["lora.B"]["0.lora_B"], same.server["lora.B"]["0.lora_B"])


def test_clients_count_by_the_size_of_their_product_on_request() -> None:
    net = adapted()
    method = ALL["fedavg"](net, weight="norm")
    experiment = Experiment.of(method, fb.small_federation())
    down, up, shares = uploaded(method, experiment.start(), experiment)
    changes = net.changes({**down, **up})
    norms = torch.stack([v.square().sum((1, 2)) for v in changes.values()]).sum(0).sqrt()
    torch.testing.assert_close(shares, norms / norms.sum())


# 11 is in tests/core/test_lora.py (stack = loop, with masks and sizes), 12 everywhere

# 13. bytes


class Wide(nn.Module):
    """As many layers, of the size, as the base of the ledger has: 24 of 256 to 256."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(256, 256) for _ in range(24))

    def forward(self, x):
        x = nn.functional.pad(x, (0, 250)).float()
        for layer in self.layers:
            x = x + layer(x).tanh()
        return x[:, :4]


FULL = 24 * 8 * (256 + 256) * 4  # layers x rank x (in + out) x bytes of a number
DENSE = 24 * 256 * 256 * 4
LEDGER = [
    (fb.FedAvgLoRA, {}, FULL, FULL, 2),
    (fb.FFALoRA, {}, FULL // 2, FULL // 2, 1),
    (fb.FedSALoRA, {}, FULL // 2, FULL // 2, 1),
    (fb.ProductLoRA, {"keep": "svd"}, FULL, FULL, 2),
    (fb.ProductLoRA, {"keep": "stack"}, FULL, DENSE, 3),
    (fb.ProductLoRA, {"keep": "residual"}, FULL, FULL + DENSE, 3),
    (fb.DualLoRA, {}, FULL, FULL, 2),
]


@pytest.mark.parametrize(("kind", "options", "up", "down", "blocks"), LEDGER)
def test_the_byte_ledger_is_exact(kind, options, up, down, blocks) -> None:
    assert (FULL, DENSE) == (393_216, 6_291_456)
    net = fb.lora(Wide(), rank=8)
    data = fb.small_federation(sizes=(4, 3), dtype=torch.float32)
    method = kind(net, batch_size=100, **options)
    experiment = Experiment.of(method, data)
    _, report = run_round(experiment, experiment.start(), [0, 1], Sequential())
    sent = {name: by_client[1] for name, by_client in report.bytes_down.items()}
    got = {name: by_client[1] for name, by_client in report.bytes_up.items()}
    assert sum(sent.values()) == down
    assert sum(got.values()) == up + 8 * blocks  # a weight for each block
    assert "base" not in sent and "base" not in got


# bad input


def test_a_net_without_adapters_is_refused() -> None:
    with pytest.raises(UserError, match=r"^FedSALoRA.net: the method needs a net with adapters"):
        fb.FedSALoRA(fb.small_net())


def test_a_head_without_a_home_is_refused_by_name() -> None:
    with pytest.raises(UserError, match=r'"4.weight" trains and has no home'):
        fb.FedAvgLoRA(adapted())
    with pytest.raises(UserError, match="the net trains nothing as a whole"):
        fb.FedAvgLoRA(fb.lora(module(), 2, targets="0"), head="shared")


def test_ranks_above_the_nets_are_refused() -> None:
    with pytest.raises(UserError, match="a client's rank is 1 to 2"):
        fb.FedAvgLoRA(adapted(), head="shared", ranks=(1, 3))


def test_a_frozen_factor_that_is_zero_is_refused() -> None:
    net = nn.Sequential(nn.Embedding(9, 5), nn.Flatten(), nn.Linear(30, 4))
    lora = fb.lora(net, 2, targets="0")
    with pytest.raises(UserError, match=r'"0.lora_A" starts at zero'):
        fb.FFALoRA(lora)
    fb.FFALoRA(lora, turns="alternate")
