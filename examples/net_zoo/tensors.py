"""Where a module keeps its tensors."""

from __future__ import annotations

import random
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from net_zoo.species import NONE, Species, classify, dense, hidden

DRAWN = "is drawn, and neither a parameter nor a buffer"
UNREGISTERED = "is a parameter that no module has registered"


class Bare(nn.Module):
    """Parameters without layers."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Parameter(torch.randn(5, 6) / 3)
        self.second = nn.Parameter(torch.randn(6, 3) / 3)

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(x @ self.first) @ self.second


class Fourier(nn.Module):
    """Random features that stay as they were drawn."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("omega", torch.randn(5, 8))
        self.fc = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(torch.cos(x @ self.omega))


def with_scale(module: Any) -> None:
    module.scale = torch.arange(6.0)


def with_drawn_scale(module: Any) -> None:
    module.scale = torch.randn(6)


def with_transient_buffer(module: Any) -> None:
    module.register_buffer("scale", torch.arange(6.0), persistent=False)


def with_complex_buffer(module: Any) -> None:
    module.register_buffer("scale", torch.randn(6, dtype=torch.cfloat))


def with_list(module: Any) -> None:
    module.more = [nn.Parameter(torch.randn(6, 6))]


def with_list_of_layers(module: Any) -> None:
    module.more = [nn.Linear(6, 6)]


def with_parameter_list(module: Any) -> None:
    module.more = nn.ParameterList([nn.Parameter(torch.randn(6, 6))])


def with_second_name(module: Any) -> None:
    module.again = module.inner.weight


def with_reference(module: Any) -> None:
    module.kept = [module.inner.weight]


def with_bound_method(module: Any) -> None:
    module.first = module.inner.forward


def with_closure(module: Any) -> None:
    weight = module.inner.weight
    module.first = lambda x: F.linear(x, weight)


def with_view(module: Any) -> None:
    module.turned = module.inner.weight.t()


def with_frozen_layer(module: Any) -> None:
    module.inner.weight.requires_grad_(False)


def scaled(module: Any, x: Tensor) -> Tensor:
    return module.fc((hidden(module, x) * module.scale).real)


def started_by_python() -> nn.Module:
    layer = nn.Linear(5, 3)
    nn.init.constant_(layer.weight, random.random())
    return layer


TENSORS = (
    Species("parameters without layers", Bare),
    Species("a constant buffer, drawn once (Fourier features)", Fourier),
    Species("a buffer that is not stored", dense(scaled, with_transient_buffer)),
    Species("a buffer of complex numbers", dense(scaled, with_complex_buffer)),
    Species("a fixed tensor in an attribute", dense(scaled, with_scale)),
    Species(
        "a tensor in an attribute, drawn at the start",
        dense(scaled, with_drawn_scale),
        NONE,
        f'"scale" {DRAWN}',
    ),
    Species(
        "`nn.ParameterList`",
        dense(lambda m, x: m.fc(hidden(m, x) @ m.more[0]), with_parameter_list),
    ),
    Species(
        "parameters in a plain list",
        dense(lambda m, x: m.fc(hidden(m, x) @ m.more[0]), with_list),
        NONE,
        f'"more[0]" {UNREGISTERED}',
    ),
    Species(
        "layers in a plain list",
        dense(lambda m, x: m.fc(m.more[0](hidden(m, x))), with_list_of_layers),
        NONE,
        f'"more[0].weight" {UNREGISTERED}',
    ),
    Species(
        "a weight under a second name",
        dense(lambda m, x: m.fc(hidden(m, x) + x @ m.again.t()), with_second_name),
    ),
    Species(
        "a weight kept in a list",
        dense(lambda m, x: m.fc(hidden(m, x) + x @ m.kept[0].t()), with_reference),
        NONE,
        'it reads "inner.weight" not from its layer',
    ),
    Species(
        "a bound method of a layer, kept",
        dense(lambda m, x: m.fc(torch.tanh(m.first(x))), with_bound_method),
    ),
    Species(
        "a function that closes over a weight",
        dense(lambda m, x: m.fc(torch.tanh(m.first(x))), with_closure),
        NONE,
        'the attribute "first" holds the tensor "inner.weight"',
    ),
    Species(
        "a view of a weight, kept",
        dense(lambda m, x: m.fc(hidden(m, x) + x @ m.turned), with_view),
        NONE,
        "the module cannot be copied: ",
    ),
    Species(
        "a frozen layer",
        dense(classify, with_frozen_layer),
        NONE,
        'the parameter "inner.weight" is frozen (requires_grad=False)',
    ),
    Species(
        "a start by Python's own randomness",
        started_by_python,
        NONE,
        'the start depends on the seed alone: "weight" was drawn otherwise',
    ),
)
