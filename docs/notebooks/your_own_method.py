# %% [markdown]
# # Your own method, proven
#
# An idea takes an evening to write down, and a month to find out that a line of it never ran. This
# notebook writes a method, lets the contract look for mistakes, plants one to see it caught, and
# compares a round with a few lines of plain torch.

# %%
from dataclasses import dataclass
from tempfile import mkdtemp
from typing import Annotated

import torch
import torch.nn.functional as F

from fedblocks import (
    CHECKS,
    METHODS,
    AtLeast,
    Experiment,
    Help,
    Method,
    Paper,
    Phase,
    Private,
    Pull,
    Sequential,
    Shared,
    check_method,
    compare,
    example_for,
    is_fedavg,
    join,
    plan_text,
    run_check,
    run_round,
)

torch.set_num_threads(1)

# %% [markdown]
# ## The idea
#
# Everyone shares a model. Every client has a head of its own besides, which is pulled to the shared
# head: with little data one stays near the others.


# %%
@dataclass(frozen=True, eq=False)
class SoftHead(Method):
    """A shared model, and on every client a head of its own that stays near the shared one."""

    paper = Paper("none: an example", "you", 2026)

    strength: Annotated[
        float, AtLeast(0), Help("of the pull of the own head to the shared one")
    ] = 0.5

    def blocks(self):
        body, head = self.net.body, self.net.head
        return {"body": Shared(body), "head": Shared(head), "own": Private(head)}

    def predict(self, blocks, x):
        return self.net(join(blocks["body"], blocks["own"]), x)

    def shared_loss(self, blocks, batch):
        return batch.loss(self.net(join(blocks["body"], blocks["head"]), batch.x))

    def phases(self):
        shared = self.step("body", "head", loss=self.shared_loss)
        own = self.step("own", pull=Pull("own", to="head", strength=self.strength))
        return [Phase((shared, own), self.epochs)]

    def joining(self):
        return [Phase((self.step("own"),), self.epochs)]


# %% [markdown]
# ## Say what you expect
#
# A *reduction* says what the method becomes at a limit. Here the shared part never looks at the own
# heads, so body and head are those of FedAvg, whatever the strength. The plan is reviewed once, by
# a person, and kept as text.

# %%
PLAN = """\
block  home    sees          writes  phases
body   server  1 copy        n       1
head   server  1 copy        n       1
own    client  what it kept  -       1
train 1: on all for 1 epoch: body + head, lr 0.2, SGD; then own, lr 0.2, SGD, own pulled to head as it began by 0.5
adapt: nothing
join 1: on all for 1 epoch: own, lr 0.2, SGD
views: personal
"""  # noqa: E501

reductions = (is_fedavg("the shared part", {"body": "model", "head": "model"}),)
example = example_for(SoftHead, reductions=reductions, plan=PLAN)
assert plan_text(example) == PLAN

# %% [markdown]
# ## Twenty-two questions
#
# The contract runs the method in a small federation with clients of unequal size, an empty one, a
# broken one, one that comes twice, two engines, a stop in between, beside other runs.

# %%
for verdict in check_method(example):
    print(verdict)
    assert verdict.passed, verdict.detail

# %% [markdown]
# ## Would it notice?
#
# A check that cannot fail proves nothing. This version forgets the pull, as a published library
# does in its pFedMe: the option is there, and nothing listens to it.


# %%
class Deaf(SoftHead):
    def phases(self):
        shared = self.step("body", "head", loss=self.shared_loss)
        return [Phase((shared, self.step("own")), self.epochs)]


knobs = next(check for check in CHECKS if check.name == "no_dead_knobs")
verdict = run_check(knobs, example_for(Deaf))
print(verdict.passed, "-", verdict.detail)
assert not verdict.passed and "strength" in verdict.detail

# %% [markdown]
# ## A round by hand
#
# The last proof does without the library: one client, its ten rows as one batch, two gradient steps
# in plain torch.

# %%
experiment = Experiment.of(
    SoftHead(example.options["net"], lr=0.2, batch_size=10), example.federation, seed=0
)
start = experiment.start()
after, _ = run_round(experiment, start, [0], Sequential())

rows = example.federation.train[0]
x, y = example.federation.x[rows], example.federation.y[rows]
body, head = (
    {name: value[0] for name, value in start.server[block].items()} for block in ("body", "head")
)


def descend(loss, tensors, lr=0.2):
    """One step of plain gradient descent on some tensors."""
    free = {name: value.clone().requires_grad_() for name, value in tensors.items()}
    gradients = torch.autograd.grad(loss(free), list(free.values()))
    return {
        name: (value - lr * g).detach()
        for (name, value), g in zip(free.items(), gradients, strict=True)
    }


def cross_entropy(tensors):
    return F.cross_entropy(experiment.methods["all"].net(tensors, x), y)


def own_loss(own):
    distance = sum(((own[name] - head[name]) ** 2).sum() for name in head)
    return cross_entropy({**{name: moved[name] for name in body}, **own}) + 0.5 / 2 * distance


moved = descend(cross_entropy, {**body, **head})
own = descend(own_loss, head)  # it starts where the shared head does
for name in moved:
    block = "body" if name in body else "head"
    assert torch.allclose(after.server[block][name][0], moved[name], atol=1e-12)
for name in own:
    assert torch.allclose(after.private[0]["own"][name], own[name], atol=1e-12)
print("a round equals its arithmetic to 1e-12")

# %% [markdown]
# ## And does it help?
#
# That is another question, and a comparison with six seeds answers it. A first look:

# %%
METHODS["softhead"] = SoftHead
found = compare(
    "digits-fedper", ["softhead"], seeds=1, out=f"{mkdtemp()}/look", changes=["rounds=3"]
)
for row in found.rows:
    print(f"{row['name']:10} {row['mean']:.2f}")
print(found.verdict)

# %% [markdown]
# To let others use it, put it in a package with an entry point in the group `fedblocks.methods`;
# see [Your own method](../tutorial/own-method.md). The text of this notebook that matters, the
# class, its plan and its reductions, is what such a package and its test consist of.
