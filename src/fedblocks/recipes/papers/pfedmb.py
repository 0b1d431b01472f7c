"""Tables II and III and figure 5 of pFedMB (Mori et al., 2022, arXiv 2211.07931)."""

from __future__ import annotations

from typing import Any

from fedblocks.config.options import Table
from fedblocks.recipes.recipe import Cell, Recipe, merge_tables

PAPER = (
    "Mori et al., Personalized Federated Learning with Multi-branch Architecture, arXiv 2211.07931"
)
METHODS = ("local", "fedavg", "fedprox", "fedper", "pfedme", "ifca", "fedfomo", "fedamp", "pfedmb")
PUBLISHED = {  # table II, percent
    "c10-2class-15": (90.01, 89.69, 90.51, 89.73, 90.04, 90.17, 90.12, 90.73, 90.69),
    "c10-2class-50": (83.79, 85.68, 86.07, 84.56, 83.09, 85.68, 85.01, 85.90, 86.73),
    "c10-dir-15": (67.54, 73.52, 73.38, 71.97, 72.92, 72.42, 67.55, 72.91, 73.53),
    "c10-dir-50": (61.27, 70.32, 70.98, 67.57, 71.00, 69.84, 62.62, 65.98, 72.14),
    "c100-20class-15": (39.10, 43.49, 44.81, 41.52, 45.57, 41.46, 38.19, 41.27, 44.73),
    "c100-20class-50": (29.42, 38.53, 36.07, 29.67, 39.04, 35.01, 28.18, 29.53, 39.78),
}
TESTBEDS = {
    "2class": "pfedmb_two_classes",
    "dir": "pfedmb_dirichlet",
    "20class": "pfedmb_twenty_classes",
}
PUBLISHED_BRANCHES = {"c10-2class-50": 10.0}  # table III, as far as our copy of the paper goes
BRANCHES = (2, 3, 5, 10, 15, 20)

RATES = (0.01, 0.03, 0.1, 0.3)
# as many points as the others
MANY_RATES = (0.003, 0.005, 0.01, 0.02, 0.03, 0.05, 0.07, 0.1, 0.15, 0.2, 0.3, 0.5)
ALPHA_RATES = (0.01, 0.1, 1.0)
GRIDS: dict[str, dict[str, tuple[Any, ...]]] = {
    **{name: {"method.lr": MANY_RATES} for name in ("local", "fedavg", "fedper")},
    "fedprox": {"method.lr": RATES, "method.strength": (0.01, 0.1, 1.0)},
    # lr x strength is the share of the way to the personal model: with the 0.005 of pFedMe's own
    # experiments the shared model was still on its way after all rounds
    "pfedme": {
        "method.inner_lr": (0.01, 0.03),
        "method.strength": (5.0, 15.0),
        "method.lr": (0.02, 0.05, 0.1),
    },
    "ifca": {"method.lr": RATES, "method.clusters": (2, 3, 5)},
    "fedfomo": {"method.lr": RATES, "method.peers": (2, 5, 10)},
    "fedamp": {"method.lr": RATES, "method.sigma": (0.1, 1.0, 10.0)},
    "pfedmb": {"method.lr": RATES, "method.alpha_lr": ALPHA_RATES, "method.branches": BRANCHES},
}
OPTIONS: dict[str, Table] = {
    "pfedme": {"inner_steps": 5, "local_rounds": 20},
    "fedamp": {"relative": True},  # sigma in units of the mean distance between models
    # the measure fine-tunes all alike
    "pfedmb": {"finetune": "none", "start": "independent", "lr_scale": "printed"},
}
# the library's defaults, in cells of their own beside those read to the letter
COMMON: Table = {"start": "common", "lr_scale": "mixture"}
QUICK_NET: Table = {"name": "mlp", "hidden": [32]}
QUICK_OPTIONS: dict[str, Table] = {
    **{name: {"lr": 0.05} for name in METHODS},
    "pfedme": {"inner_lr": 0.05, "inner_steps": 2, "local_rounds": 8, "lr": 0.02},
    "fedfomo": {"lr": 0.05, "peers": 2},
    "ifca": {"lr": 0.05, "clusters": 2},
    # even weights of 3 branches make it a third of that
    "pfedmb": {"lr": 0.1, "alpha_lr": 1.0, "branches": 3},
}
QUICK_RATES = {"method.lr": (0.1, 0.4)}  # the more branches, the larger
OPEN = (
    "Not in the paper, chosen here: no momentum, alpha "
    "as a softmax of free "
    "logits, biases mixed like weights, the head of FedPer (the last layer), and all grids.",
    'The paper trains "until convergence": at most 200 rounds here (15 clients) or 500 (50); how '
    "many of them, a fifth, half or all, is chosen with the other values, on validation data.",
    "Every method is fine-tuned by one local training (5 epochs) after the last round, as in the "
    "paper, and gets 12 "
    "tries to choose its values on validation data: a full grid where it has 12 points, 12 "
    "random ones of a larger "
    "grid; all for a fifth of the rounds, the best four for half of them.",
)
TWO_STARTS = (
    "Read to the letter, every branch starts as an initialisation of its own; an even mixture of "
    "them has 1 / sqrt(B) of its spread in every layer. Cells that end in -common have the "
    "library's default, branches around one common initialisation (method.start)."
)
TWO_STEPS = (
    "Read to the letter, an even mixture of B branches moves by lr / B. In cells that end in "
    "-common it moves as far as one net would, as is the library's default (method.lr_scale)."
)
QUICK = (
    "--quick: a perceptron of 32 units in place of LeNet, a twentieth of the images (a tenth "
    "with 50 clients), 1 or 2 "
    "local epochs, few rounds, no choice of values."
)


def table2() -> Recipe:
    """Six settings, nine methods."""
    cells = [
        cell
        for key, row in PUBLISHED.items()
        for name, number in zip(METHODS, row, strict=True)
        for cell in setting_cells(key, name, number)
    ]
    title = "Accuracy of personal models on CIFAR-10 and CIFAR-100"
    local = (
        "Local has all clients in every round, and so many rounds that each client trains as "
        "often as in the others."
    )
    return Recipe(
        "pfedmb-table2",
        title,
        PAPER,
        "table",
        tuple(cells),
        notes=(*OPEN, TWO_STARTS, TWO_STEPS, local, QUICK),
    )


def table3() -> Recipe:
    """The number of branches that validation data ask for."""
    cells = tuple(
        cell
        for key in PUBLISHED
        for cell in setting_cells(
            key,
            "pfedmb",
            PUBLISHED_BRANCHES.get(key),
            measure={"name": "configured", "key": "method.branches"},
            choose_by={"name": "fine_tuned_accuracy"},
            quick_grid={"method.branches": (2, 5), **QUICK_RATES},
        )
    )
    lost = (
        "Our copy of the paper lacks the other numbers; known: at most 10 everywhere, fewer "
        "than 10 for CIFAR-100."
    )
    quick = QUICK.replace(
        "no choice of values", "2 or 5 branches and 2 learning rates to choose from"
    )
    title = "Branches that were chosen"
    return Recipe(
        "pfedmb-table3",
        title,
        PAPER,
        "table",
        cells,
        "branches",
        notes=(lost, *OPEN, TWO_STARTS, TWO_STEPS, quick),
    )


def figure5() -> Recipe:
    """Accuracy by the number of branches."""
    grids = {
        "grid": {"method.lr": RATES, "method.alpha_lr": ALPHA_RATES},
        "quick_grid": QUICK_RATES,
    }
    cells = tuple(
        cell
        for b in BRANCHES
        for cell in setting_cells(
            "c10-2class-50", "pfedmb", None, f"branches-{b}", {"branches": b}, **grids
        )
    )
    notes = (
        "No printed numbers; known: the curve has its peak at 10 branches. The setting is that "
        "with 10 in table III.",
    )
    title = "Accuracy by the number of branches"
    quick = QUICK.replace("no choice of values", "2 learning rates to choose from")
    return Recipe(
        "pfedmb-figure5",
        title,
        PAPER,
        "figure",
        cells,
        notes=(*notes, *OPEN, TWO_STARTS, TWO_STEPS, quick),
    )


def setting_cells(
    setting: str,
    method: str,
    published: float | None,
    point: str | None = None,
    fixed: Table | None = None,
    **more: Any,
) -> list[Cell]:
    """A method in one of the six settings; pFedMB from both starts."""
    first = setting_cell(setting, method, published, point, fixed, **more)
    if method != "pfedmb":
        return [first]
    name, options = f"{first.point}-common", {**(fixed or {}), **COMMON}
    return [first, setting_cell(setting, method, published, name, options, **more)]


def setting_cell(
    setting: str,
    method: str,
    published: float | None,
    point: str | None = None,
    fixed: Table | None = None,
    **more: Any,
) -> Cell:
    """A method in one of the six settings."""
    config = merge_tables(setting_config(setting, method), {"method": fixed or {}})
    quick = merge_tables(quick_setting(setting, method), {"method": fixed or {}})
    fields = {
        "measure": {"name": "fine_tuned_accuracy"},
        "grid": GRIDS[method],
        "until_convergence": True,
        "quick": quick,
        **more,
    }
    return Cell(f"{setting}/{point or method}", config, published=published, **fields)


def setting_config(setting: str, method: str) -> Table:
    """All clients of 15, or a fifth of 50, train LeNet for 5 epochs on batches of 64."""
    data, kind, clients = setting.split("-")
    few = clients == "15"
    rounds, size = (200, 1.0) if few else (500, 0.2)
    if method == "local":
        rounds, size = int(rounds * size), 1.0
    options = {"name": method, "epochs": 5, "batch_size": 64, **OPTIONS.get(method, {})}
    return {
        "rounds": rounds,
        "data": {
            "name": f"cifar{data[1:]}",
            "testbed": {"name": TESTBEDS[kind], "clients": int(clients)},
        },
        "net": {"name": "lenet"},
        "method": options,
        "cohort": {"size": size},
        "evaluation": {"every": rounds, "parts": ["validation", "test"]},
    }


def quick_setting(setting: str, method: str) -> Table:
    """The same in seconds."""
    many, local = setting.endswith("50"), method == "local"
    rounds = 2 if many and local else 10 if many else 5
    testbed: Table = {"fraction": 0.1 if many else 0.05}
    if "-dir-" in setting:
        testbed["min_size"] = 4
    return {
        "rounds": rounds,
        "data": {"testbed": testbed},
        "net": QUICK_NET,
        "method": {"epochs": 1 if many else 2, "batch_size": 32, **QUICK_OPTIONS[method]},
        "evaluation": {"every": rounds, "parts": ["test"]},
        "checkpoint": {"every": rounds},
    }
