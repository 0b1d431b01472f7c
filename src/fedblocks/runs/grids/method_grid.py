"""A comparison of methods that were handed over as objects: the same grid of runs, made
of methods instead of names.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from fedblocks.config.code.ingredients import Ingredients, method_table, name_of
from fedblocks.config.code.loading import Recipe
from fedblocks.config.model import Config
from fedblocks.config.options import Table
from fedblocks.core.errors import UserError, a_kind
from fedblocks.core.folder_names import check_folder_name
from fedblocks.core.method import Method
from fedblocks.core.samplers import Sampler
from fedblocks.data.federation import Federation
from fedblocks.runs.grids.grid import Grid
from fedblocks.runs.python import config_of_objects

Data = Federation | Callable[[int], Federation]  # the same for all seeds, or a function of the seed
# methods, with names of their own where two are alike
Listed = Sequence[Method] | Mapping[str, Method]


@dataclass(frozen=True)
class MethodGrid(Grid):
    """What is compared: each of the methods, with each of the seeds, on the data of that seed."""

    configs: Mapping[tuple[str, int], Config]  # method and seed -> the configuration of its run

    def config(self, method: str, seed: int) -> Config:
        """The configuration of one run, with its method and data."""
        return self.configs[method, seed]

    def plan(self) -> Table:
        """What is compared, as it is recorded: the program that called `compare` repeats it."""
        compared = {"methods": list(self.methods), "seeds": self.seeds, **self.methods}
        return {**self.base.resolved(), "compare": compared}


def grid_of(
    methods: Listed, data: Data, rounds: int | None, seeds: int, settings: Mapping[str, Any]
) -> MethodGrid:
    """The grid, checked as far as the configurations show."""
    if not isinstance(seeds, int):
        raise UserError(
            f"seeds is {a_kind(seeds)}, and says how many there are",
            "write for example seeds=6; seed=10 makes 10 the first of them",
        )
    if seeds < 1:
        raise UserError(f"{seeds} seeds: nothing to run", "use at least 1, and 6 for a verdict")
    named = names_of(methods)
    first = int(settings.get("seed", 0))
    configs: dict[tuple[str, int], Config] = {}
    for seed in range(first, first + seeds):
        some = Ingredients.of(next(iter(named.values())), data_of(data, seed))
        for name, method in named.items():
            own = replace(some, methods=Ingredients.of_methods(method))
            configs[name, seed] = config_of_objects(own, rounds, {}, {**settings, "seed": seed})
        _check_parts(configs[next(iter(named)), seed])
    base = configs[next(iter(named)), first]
    tables = {name: method_table(method) for name, method in named.items()}
    return MethodGrid(base, tables, seeds, configs)


def names_of(methods: Listed) -> dict[str, Method]:
    """Methods by name; two of one name must be told apart."""
    if isinstance(methods, Method):
        raise UserError(
            "one method alone is not compared with anything",
            "give a list: [Local(net), FedAvg(net)]",
        )
    if isinstance(methods, Mapping):
        named = {check_folder_name(name, "a method"): own for name, own in methods.items()}
    else:
        named = _named_by_kind(methods)
    if not named:
        raise UserError("no method to compare", "give a list: [Local(net), FedAvg(net)]")
    return named


def _named_by_kind(methods: Sequence[Method]) -> dict[str, Method]:
    named: dict[str, Method] = {}
    for method in methods:
        Ingredients.of_methods(method)
        name = name_of(type(method))
        if name in named:
            fix = f'give them names: {{"{name}": ..., "{name}-2": ...}}'
            raise UserError(f"two methods are called {name}", fix)
        named[name] = method
    return named


def data_of(data: Data, seed: int) -> Federation:
    """The data of a seed."""
    return data if isinstance(data, Federation) or not callable(data) else data(seed)


def recipes_of(methods: Listed, data: Data, sampler: Sampler | None = None) -> list[Recipe]:
    """For a command that reads the program: what each run of the comparison uses."""
    return [_recipe(method, data, sampler) for method in names_of(methods).values()]


def _recipe(method: Method, data: Data, sampler: Sampler | None) -> Recipe:
    return lambda seed: Ingredients.of(method, data_of(data, seed), sampler)


def _check_parts(config: Config) -> None:
    if "test" not in config.evaluation.parts:
        raise UserError("methods are compared on test data", 'add "test" to evaluation["parts"]')
