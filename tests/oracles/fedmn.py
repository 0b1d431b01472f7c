"""FedMN (Wang et al., 2022), its algorithm box for pools of three layers, in plain torch.

The box leaves open what the methods page answers: hard gates forward and soft ones backward, one
draw of the noise in a round, blocks averaged over those who used them, evaluation with the more
probable choice. What the page adds to the box is here, too: summaries in units of the federation,
a layer for pairs of input and label, noise that fades, first rounds with open gates, a router that
stays as it was drawn or starts from groups of first updates, a path that is the net itself.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from . import definition
from .fedmn_start import fitted_head
from .plain import Batches, Ints, Outcome, Task

Tensors = dict[str, Tensor]
# (round, client) -> the examples that the router sees in each step
Looks = dict[tuple[int, int], list[Ints]]


@dataclass(frozen=True)
class Drawn:
    """All that is random, by round and client."""

    noises: dict[tuple[int, int], Tensor]  # [edges]; the last round is the evaluation
    looks: Looks
    keys: dict[tuple[int, int], list[int]]  # of each step


@dataclass
class Pool:
    """What is on the server."""

    encoders: list[Tensors]
    middle: list[Tensors]
    outputs: list[Tensors]
    router: Tensors
    moments: Tensors  # of all summaries in the federation: mean and square

    def layers(self) -> dict[str, list[Tensors]]:
        return {
            "encoders": self.encoders,
            "modules.2": self.middle,
            "outputs": self.outputs,
            "router": [self.router],
        }


@dataclass(frozen=True)
class Choices:
    """The options of the method."""

    lr: float
    momentum: float = 0.0
    decay: float = 0.0
    start: float = 1.0  # tau_0
    end: float = 0.1  # tau_T
    rounds: int = 150  # T
    soft: bool = False  # relaxed gates in training, probabilities in evaluation
    normalise: bool = True
    dropout: float = 0.0  # in middle blocks
    sample: bool = False  # the evaluation draws its gates
    per_step: bool = False  # every step draws its noise anew
    noise: tuple[float, ...] = (1.0, 1.0)  # in each round
    open_rounds: int = 0  # at first, with all gates open
    scaled: bool = False  # summaries in units of the federation
    unit_length: bool = True
    relu: bool = True
    only_used: bool = False  # modules that lead nowhere are not sent
    head_only: bool = False  # of the router, its last layer learns
    frozen: bool = False  # the router stays as it was drawn
    groups: int = 0  # of first updates, from which the routing head starts; 0: as it was drawn
    as_one_net: bool = False  # steps of a layer divided by the sum of its modules' squared shares
    # what the fallback was needed for, told to the test
    dead: list[str] = field(default_factory=list)

    def temperature(self, t: int) -> float:
        return self.start * (self.end / self.start) ** (t / self.rounds)


def dense(w: Tensors, name: str, x: Tensor) -> Tensor:
    return x @ w[f"{name}.weight"].T + w[f"{name}.bias"]


def hidden(w: Tensors, prefix: str, x: Tensor) -> Tensor:
    """Two hidden layers."""
    return dense(w, f"{prefix}.2", dense(w, f"{prefix}.0", x).relu()).relu()


def perceptron(w: Tensors, prefix: str, x: Tensor) -> Tensor:
    """Two hidden layers and an output layer."""
    return dense(w, f"{prefix}.4", hidden(w, prefix, x))


def encoder(w: Tensors, x: Tensor) -> Tensor:
    """The net with a wider last layer and a ReLU; or the net itself, less its last layer."""
    return perceptron(w, "0.0", x).relu() if "0.0.4.weight" in w else hidden(w, "0", x)


def block(w: Tensors, x: Tensor, mask: Tensor | float) -> Tensor:
    """A dense layer and a ReLU; where the net itself is the path, added to what is given."""
    if "1.0.weight" in w:
        return dense(w, "1.0", x).relu() * mask
    return x + dense(w, "1.change.0", x).relu() * mask


def summaries(w: Tensors, x: Tensor, y: Tensor, choices: Choices) -> Tensor:
    """[phi_x(x_i), phi_y(y_i)], through the layer for pairs if there is one: [examples, width]."""
    s = torch.cat([perceptron(w, "inputs", x), w["labels.weight"].T[y] + w["labels.bias"]], 1)
    if "pairs.0.weight" in w:
        s = dense(w, "pairs.0", s).relu()
    if choices.unit_length:
        s = s / s.norm(dim=1, keepdim=True)
    return s.relu() if choices.relu else s


def router(
    pool: Pool, x: Tensor, y: Tensor, choices: Choices, before: Tensors | None = None
) -> Tensor:
    """G = mean_i h(s_i), where s_i may be in units of the federation; 0 if there are no
    examples. What is `before` the head may be that of another router.
    """
    s = summaries(pool.router if before is None else before, x, y, choices)
    if choices.scaled:
        mean, square = pool.moments["mean"], pool.moments["square"]
        s = (s - mean) / torch.sqrt(square - mean**2 + 1e-6)
    return dense(pool.router, "gates", s).sum(0) / max(len(x), 1)


def split(gates: Tensor, n: tuple[int, int, int]) -> tuple[Tensor, Tensor, Tensor]:
    """A2 [middle, encoders], A3 [outputs, middle], o [outputs]."""
    first = n[0] * n[1]
    return (
        gates[:first].reshape(n[1], n[0]),
        gates[first : -n[2]].reshape(n[2], n[1]),
        gates[-n[2] :],
    )


def reached(gates: Tensor, n: tuple[int, int, int]) -> tuple[list[int], list[int]]:
    """The middle and output blocks that an input gets to."""
    into_middle, into_output, _ = split(gates, n)
    middle = [j for j in range(n[1]) if any(into_middle[j] > 0)]
    return middle, [j for j in range(n[2]) if any(into_output[j, k] > 0 for k in middle)]


def sent(gates: Tensor, n: tuple[int, int, int], choices: Choices) -> tuple[list[int], list[int]]:
    """The middle and output blocks that a client has: all that an input gets to, or only those
    on a way to the prediction.
    """
    middle, outputs = reached(gates, n)
    if not choices.only_used:
        return middle, outputs
    _, into_output, final = split(gates, n)
    outputs = [j for j in outputs if final[j] > 0]
    return [k for k in middle if any(into_output[j, k] > 0 for j in outputs)], outputs


def connect(hard: Tensor, logits: Tensor, n: tuple[int, int, int], choices: Choices) -> Tensor:
    """If nothing reaches the prediction: its most probable output, and back from there."""
    middle, outputs = reached(hard, n)
    if any(split(hard, n)[2][j] > 0 for j in outputs):
        return hard
    hard = hard.clone()
    (into_middle, into_output, final), (p_middle, p_output, p_final) = (
        split(hard, n),
        split(logits, n),
    )
    j = int(p_final.argmax())
    final[j] = 1
    choices.dead.append("prediction")
    if j not in outputs:
        k = int(p_output[j].argmax())
        into_output[j, k] = 1
        choices.dead.append("output")
        if k not in middle:
            into_middle[k, int(p_middle[k].argmax())] = 1
            choices.dead.append("middle")
    return hard


Masks = dict[int, Tensor]  # middle block -> what its output is multiplied with


def forward(
    pool: Pool,
    gates: Tensor,
    n: tuple[int, int, int],
    x: Tensor,
    choices: Choices,
    masks: Masks | None = None,
) -> Tensor:
    """Every block is given the gated mean of those before it that the client has."""
    into_middle, into_output, final = split(gates, n)
    middle, outputs = sent(gates.detach(), n, choices)
    h1 = [encoder(w, x) for w in pool.encoders]
    h2 = {
        j: block(
            pool.middle[j],
            sum(a * h for a, h in zip(into_middle[j], h1)) / into_middle[j].sum(),
            masks[j] if masks else 1.0,
        )
        for j in middle
    }
    h3 = {
        j: dense(
            pool.outputs[j],
            "2",
            sum(into_output[j, k] * h2[k] for k in middle) / into_output[j][middle].sum(),
        )
        for j in outputs
    }
    return sum(final[j] * h3[j] for j in outputs) / final[outputs].sum()


def shares(
    gates: Tensor, n: tuple[int, int, int], choices: Choices
) -> tuple[list[float], list[float], list[float]]:
    """How much of the prediction comes through each encoder, middle block and output: the sum over
    all paths of the product of their steps' shares.
    """
    into_middle, into_output, final = split(gates, n)
    middle, outputs = sent(gates, n, choices)
    through = ([0.0] * n[0], [0.0] * n[1], [0.0] * n[2])
    for j in outputs:
        last = float(final[j] / final[outputs].sum())
        for k in middle:
            step = last * float(into_output[j, k] / into_output[j][middle].sum())
            for e in range(n[0]):
                path = step * float(into_middle[k, e] / into_middle[k].sum())
                for layer, module in zip(through, (e, k, j)):
                    layer[module] += path
    return through


def factors_of(
    gates: Tensor, n: tuple[int, int, int], choices: Choices
) -> tuple[float, float, float]:
    """What gradients of encoders, middle blocks and outputs are multiplied with."""
    if not choices.as_one_net:
        return 1.0, 1.0, 1.0
    first, second, third = (1 / sum(s * s for s in own) for own in shares(gates, n, choices))
    return first, second, third


def concrete(logits: Tensor, draw: Tensor, temperature: float, noise: float) -> Tensor:
    logistic = torch.log(draw) - torch.log(1 - draw)
    return torch.sigmoid((noise * logistic + logits) / temperature)


def local(
    pool: Pool,
    gates: Tensor,
    drawn: Drawn,
    at: tuple[int, int],
    data: tuple[Tensor, Tensor],
    batches: Batches,
    n: tuple[int, int, int],
    choices: Choices,
) -> Pool:
    """SGD on encoders, the blocks that were sent, and the router."""
    fresh = {
        name: [{k: v.clone().requires_grad_() for k, v in w.items()} for w in ws]
        for name, ws in pool.layers().items()
    }
    layers = fresh["encoders"], fresh["modules.2"], fresh["outputs"]
    copy = Pool(*layers, fresh["router"][0], pool.moments)
    middle, outputs = sent(gates, n, choices)
    moving = [
        *copy.encoders,
        *(copy.middle[j] for j in middle),
        *(copy.outputs[j] for j in outputs),
        *([] if choices.frozen else [copy.router]),
    ]
    tensors = [v for w in moving for v in w.values()]
    sgd = torch.optim.SGD(tensors, choices.lr, choices.momentum, weight_decay=choices.decay)
    x, y = data
    t, width = at[0], next(len(v) for k, v in copy.middle[0].items() if k.endswith("bias"))
    for batch, look, key in zip(batches, drawn.looks[at], drawn.keys[at]):
        noise = drawn.noises[at]
        if choices.per_step:
            noise = torch.from_numpy(definition.uniform(definition.fold(key, 2**22), len(gates)))
        if choices.head_only:  # all examples are looked at once, before the first step
            logits = router(copy, x, y, choices, pool.router)
        else:
            logits = router(copy, x[look], y[look], choices)
        soft = concrete(logits, noise, choices.temperature(t), choices.noise[t])
        through = soft if choices.soft else gates + soft - soft.detach()
        if t < choices.open_rounds:
            through = torch.ones_like(gates)
        masks = dropped(key, choices.dropout, n[1], (len(batch), width))
        loss = cross_entropy(forward(copy, through, n, x[batch], choices, masks), y[batch])
        for v, slope in zip(tensors, torch.autograd.grad(loss, tensors, allow_unused=True)):
            v.grad = slope  # what has none rests: torch leaves it as it is
        modules = copy.encoders, copy.middle, copy.outputs
        used = shares(through.detach(), n, choices)
        for layer, own, factor in zip(modules, used, factors_of(through.detach(), n, choices)):
            for w, share in zip(layer, own):
                for v in [v for v in w.values() if v.grad is not None]:
                    v.grad = factor * v.grad if share else None  # on no way to the prediction
        sgd.step()
    return copy


def dropped(key: int, p: float, blocks: int, shape: tuple[int, int]) -> Masks:
    """The middle blocks draw one after the other, also those that were not sent."""
    drawn = {j: definition.dropout(key, j + 1, p, *shape) for j in range(blocks)} if p else {}
    return {j: torch.from_numpy(mask) for j, mask in drawn.items()}


def averaged(old: Tensors, copies: list[Tensors], sizes: list[int], everybody: int) -> Tensors:
    """sum_m n_m a_m w_m / everybody, where a_m says who used the block; unchanged if
    the block has no users.
    """
    if not everybody:
        return old
    return {
        k: sum((s * c[k].detach() for s, c in zip(sizes, copies)), torch.zeros_like(v)) / everybody
        for k, v in old.items()
    }


def aggregated(
    pool: Pool,
    copies: dict[int, Pool],
    blocks: dict[int, tuple[list[int], list[int]]],
    task: Task,
    normalise: bool,
) -> Pool:
    """The server's side: each block from the clients that used it, encoders and router from all."""
    everybody = sum(task.size(i) for i in copies)
    new: dict[str, list[Tensors]] = {}
    for name, layer in pool.layers().items():
        users = [
            [
                i
                for i in copies
                if name in ("encoders", "router") or j in blocks[i][name == "outputs"]
            ]
            for j in range(len(layer))
        ]
        of = [[copies[i].layers()[name][j] for i in who] for j, who in enumerate(users)]
        sizes = [[task.size(i) for i in who] for who in users]
        new[name] = [
            averaged(layer[j], of[j], sizes[j], sum(sizes[j]) if normalise else everybody)
            for j in range(len(layer))
        ]
    measured = averaged(
        pool.moments,
        [c.moments for c in copies.values()],
        [task.size(i) for i in copies],
        everybody,
    )
    return Pool(new["encoders"], new["modules.2"], new["outputs"], new["router"][0], measured)


def moments(copy: Pool, x: Tensor, y: Tensor, choices: Choices) -> Tensors:
    """Of a client's own summaries, under the router as it has trained it."""
    s = summaries(copy.router, x, y, choices).detach()
    count = max(len(x), 1)
    return {"mean": s.sum(0) / count, "square": (s**2).sum(0) / count}


def first_head(old: Pool, pool: Pool, copies: dict[int, Pool], task: Task, groups: int) -> Tensors:
    """Of the router, fitted to groups of clients whose modules changed alike."""
    n = len(pool.encoders), len(pool.middle), len(pool.outputs)
    mean, square = pool.moments["mean"], pool.moments["square"]
    heard = {i: copy for i, copy in copies.items() if task.size(i)}

    def all_modules(one: Pool) -> Tensor:
        layers = *one.encoders, *one.middle, *one.outputs
        return torch.cat([v.detach().flatten() for w in layers for v in w.values()])

    changes = {i: (all_modules(c) - all_modules(old)).numpy() for i, c in heard.items()}
    units = torch.sqrt(square - mean**2 + 1e-6)
    seen = {i: ((c.moments["mean"] - mean) / units).numpy() for i, c in heard.items()}
    weight, bias = fitted_head(changes, seen, groups, n, task)
    return {"gates.weight": torch.from_numpy(weight), "gates.bias": torch.from_numpy(bias)}


def run(task: Task, pool: Pool, drawn: Drawn, choices: Choices) -> Outcome:
    n = len(pool.encoders), len(pool.middle), len(pool.outputs)
    data = [(torch.from_numpy(x), torch.from_numpy(y)) for x, y in task.train]

    def gates_at(t: int, i: int) -> Tensor:
        logits = router(pool, *data[i], choices)
        noise = (*choices.noise, choices.noise[-1])[t]  # that of the last round in the evaluation
        soft = concrete(logits, drawn.noises[t, i], choices.temperature(t), noise)
        return soft if choices.soft else connect((soft > 0.5).double(), logits, n, choices)

    for t, cohort in enumerate(task.rounds):
        copies, blocks = {}, {}
        for i, (batches,) in cohort.items():
            gates = gates_at(t, i)
            if t < choices.open_rounds:
                gates = torch.ones_like(gates)
            blocks[i] = sent(gates, n, choices)
            copies[i] = local(pool, gates, drawn, (t, i), data[i], batches, n, choices)
            copies[i].moments = moments(copies[i], *data[i], choices)
        old = pool
        pool = aggregated(pool, copies, blocks, task, choices.normalise)
        if choices.groups and t == 0:
            pool.router = pool.router | first_head(old, pool, copies, task, choices.groups)
    answers = {}
    for i in task.clients:
        logits = router(pool, *data[i], choices)
        probable = connect((logits > 0).double(), logits, n, choices)
        gates = torch.sigmoid(logits) if choices.soft else probable
        gates = gates_at(len(task.rounds), i) if choices.sample else gates
        answers[i] = forward(pool, gates, n, torch.from_numpy(task.test[i][0]), choices).numpy()
    federated = pool.layers() | ({"moments": [pool.moments]} if choices.scaled else {})
    if choices.frozen:
        del federated["router"]
    server = {
        name: [{k: np.asarray(v) for k, v in w.items()} for w in ws]
        for name, ws in federated.items()
    }
    return Outcome(server, {}, {"personal": answers})
