"""Per-FedAvg (Fallah et al., 2020), algorithm 1: w~ = w - alpha grad f(w; b1), then a
step with the slope at w~.
"""

from __future__ import annotations

from .plain import Gradient, Ints, Outcome, Params, Task, logits, mean, on


def divided(batch: Ints, count: int) -> list[Ints]:
    """A batch in several, by turns; one without examples is the first again."""
    parts = [batch[number::count] for number in range(count)]
    return [part if len(part) else parts[0] for part in parts]


def moved(w: Params, direction: Params, length: float) -> Params:
    return {k: w[k] + length * direction[k] for k in w}


def first_order(gradient: Gradient, w: Params, batch: Ints, alpha: float) -> Params:
    b1, b2 = divided(batch, 2)
    return gradient(moved(w, gradient(w, b1), -alpha), b2)


def hessian_free(gradient: Gradient, w: Params, batch: Ints, alpha: float, delta: float) -> Params:
    """g - alpha [grad f(w + delta g; b3) - grad f(w - delta g; b3)] / (2 delta), g =
    grad f(w~; b2).
    """
    b1, b2, b3 = divided(batch, 3)
    g = gradient(moved(w, gradient(w, b1), -alpha), b2)
    up, down = gradient(moved(w, g, delta), b3), gradient(moved(w, g, -delta), b3)
    return {k: g[k] - alpha * (up[k] - down[k]) / (2 * delta) for k in w}


def run(task: Task, beta: float, alpha: float, delta: float | None) -> Outcome:
    w = task.start[0]
    for cohort in task.rounds:
        copies = []
        for i, (batches,) in cohort.items():
            own, gradient = w, on(task, i)
            for batch in batches:
                if delta is None:
                    slope = first_order(gradient, own, batch, alpha)
                else:
                    slope = hessian_free(gradient, own, batch, alpha, delta)
                own = moved(own, slope, -beta)
            copies.append(own)
        w = mean(copies, [task.size(i) for i in cohort])
    answers = {}
    for i, (batches,) in task.adapting.items():
        own = w
        for batch in batches:
            own = moved(own, on(task, i)(own, batch), -alpha)
        answers[i] = logits(own, task.test[i][0])
    return Outcome({"model": [w]}, {}, {"personal": answers})
