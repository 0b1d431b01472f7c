"""Flow's table and figure (Panchal and Guan, 2022): nine methods for next-word
prediction, and stand-ins for texts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from fedblocks.config.options import Table
from fedblocks.recipes.recipe import Cell, Recipe, merge_tables

PAPER = (
    "Panchal and Guan (2022): Flow: Fine-grained Personalized Federated Learning through "
    "Dynamic Routing"
)
POSTER: Table = {"local_epochs": 1, "router_epochs": 1, "global_update_path": "personalised"}
BUCKETS = 500  # numbers of unknown words for FedRecon
METHODS: Mapping[str, Table] = {
    "fedavg": {},
    "fedyogi": {"server_lr": 0.01, "tau": 1e-5},
    "apfl": {"alpha": 0.5},
    "ditto": {"strength": 1.0},
    "fedprox": {"strength": 0.01, "tune_epochs": 1},
    "lg_fedavg": {"top_layers": 2, "local_layers": "derived"},
    "fedrecon": {
        "local": "embedding.oov",
        "recon_lr": 0.1,
        "server_rule": "yogi",
        "server_lr": 0.1,
    },
    "dynamic_routing": {},
    "flow": {"router_pace": 1 / 3, **POSTER},
}
PUBLISHED: Mapping[str, tuple[float, float]] = {  # StackOverflow, Reddit
    "fedavg": (24.98, 17.30),
    "fedyogi": (27.90, 18.85),
    "apfl": (25.48, 18.48),
    "ditto": (25.55, 18.74),
    "fedprox": (25.38, 17.58),
    "lg_fedavg": (26.78, 18.59),
    "fedrecon": (28.26, 18.89),
    "dynamic_routing": (26.54, 18.70),
    "flow": (29.16, 19.36),
}
GRID = {"method.lr": (0.1, 0.3, 1.0)}
# no fused LSTM: on a CPU, too, they are faster for several clients at once
STEP_BY_STEP = ("dynamic_routing", "flow")
SMALL_NET = {"embedding": 24, "hidden": 48, "projection": 24}


@dataclass(frozen=True)
class Texts:
    """Texts of users, in full and for --quick."""

    key: str  # in the names of cells
    data: str  # the data set
    options: Table
    quick: Table  # options for --quick
    published: Mapping[str, float]

    def cell(self, method: str, measure: str, every: int) -> Cell:
        """A method on these texts; learning rates are chosen on validation data."""
        return Cell(
            f"{self.key}/{method}",
            self.config(method, every),
            {"name": measure},
            self.published.get(method) if measure == "word_accuracy" else None,
            grid=GRID,
            tuning={"rounds": 500, "evaluation": {"every": 500}},
            quick=self.small(method),
        )

    def config(self, method: str, every: int) -> Table:
        """The net and the budget are the same for all methods."""
        table: Table = {
            "rounds": 2000,
            "data": {
                "name": self.data,
                "options": dict(self.options),
                "partition": {"name": "by_user"},
            },
            "net": {"name": "next_word"},
            "method": {"name": method, "lr": 0.3, "epochs": 1, "batch_size": 16, **METHODS[method]},
            "cohort": {"size": 10},
            "evaluation": {"every": every},
        }
        hashed = {"data": {"options": {"buckets": BUCKETS}}, "net": {"buckets": BUCKETS}}
        return merge_tables(table, hashed) if method == "fedrecon" else table

    def small(self, method: str) -> Table:
        """Few users, few words, a small net."""
        table: Table = {
            "rounds": 12,
            "data": {"options": dict(self.quick)},
            "net": dict(SMALL_NET),
            "method": {"lr": 1.0},
            "cohort": {"size": 6},
            "evaluation": {"every": 6},
            "engine": "vectorised" if method in STEP_BY_STEP else "auto",
        }
        fewer = {"data": {"options": {"buckets": 50}}, "net": {"buckets": 50}}
        return merge_tables(table, fewer) if method == "fedrecon" else table


def column_of(number: int) -> dict[str, float]:
    """One column of the table."""
    return {method: numbers[number] for method, numbers in PUBLISHED.items()}


STACKOVERFLOW = Texts(
    "stackoverflow",
    "stackoverflow",
    {"users": 1000},
    {"users": 12, "words": 1000, "steps": 10},
    column_of(0),
)
REDDIT = Texts("reddit", "reddit", {}, {"users": 12, "words": 1000, "steps": 10}, column_of(1))
REDDIT_2006 = Texts(
    "reddit2006", "reddit_2006", {}, {"users": 12, "words": 1000, "steps": 10, "least": 20}, {}
)
SHAKESPEARE = Texts(
    "shakespeare",
    "shakespeare_roles",
    {},
    {"users": 12, "words": 1000, "steps": 10, "least": 20},
    {},
)

LEFT_OPEN = (
    "The poster gives no learning rates, batch, clients a round or rounds. Here: SGD, batch 16, 10 "
    "clients a round and 2000 rounds for every method; the local learning rate is chosen from 0.1, "
    "0.3, 1.0 on validation data, three tries for each; the router learns at a third of it."
)
USERS = (
    "StackOverflow: 1,000 of the 195,303 users that train and test; all of them would not "
    "fit into memory."
)
VARIANTS = (
    "FedProx is tried after one local epoch, and LG-FedAvg's lower layers are tuned anew from "
    "averaged ones, since the poster lists both as stateless personal methods. FedRecon has 500 "
    "OOV buckets, which it must predict, too."
)
SCORES = (
    "Accuracy counts every word, OOV and EOS too, as a mean over clients; without_oov... "
    "are the other two scores."
)
QUICK = (
    "--quick: 12 users, 6 a round, 1,000 words, LSTM of 48 units, 12 rounds, lr 1.0; "
    "FedRecon has 50 OOV buckets."
)
LOST = (
    "Our copy of the poster says of Figure 1 only that it shows validation accuracy, averaged over "
    "the last 100 rounds; its numbers are lost. Here that mean stands for each of the nine "
    "methods, with its curve."
)
OLD_REDDIT = (
    "A stand-in for StackOverflow and Reddit of 2017: Reddit comments of January to "
    "March 2006 by user."
)
ROLES = "A stand-in for StackOverflow and Reddit of 2017: Shakespeare's plays by role, next word."
OFFICIAL = ("stackoverflow", "reddit")


def table_cells(*texts: Texts) -> tuple[Cell, ...]:
    """Test accuracy of every method on some texts."""
    return tuple(own.cell(method, "word_accuracy", 500) for own in texts for method in METHODS)


def figure_cells(*texts: Texts) -> tuple[Cell, ...]:
    """Validation accuracy of every method on some texts, over the last rounds."""
    return tuple(
        own.cell(method, "late_validation_accuracy", 25) for own in texts for method in METHODS
    )


def table1() -> Recipe:
    """StackOverflow and Reddit."""
    title = "Table 1: next-word accuracy of nine methods on StackOverflow and Reddit"
    notes = (LEFT_OPEN, VARIANTS, SCORES, USERS, QUICK)
    cells = table_cells(STACKOVERFLOW, REDDIT)
    return Recipe("flow-table1", title, PAPER, "table", cells, notes=notes)


def figure1() -> Recipe:
    """The last rounds."""
    title = (
        "Figure 1 (as far as known): validation accuracy of nine methods over the last 100 rounds"
    )
    notes = (LOST, LEFT_OPEN, VARIANTS, USERS, QUICK)
    cells = figure_cells(STACKOVERFLOW, REDDIT)
    return Recipe("flow-figure1", title, PAPER, "figure", cells, notes=notes)


def standing_in(recipe: Recipe, texts: Texts, deviation: str, cells: tuple[Cell, ...]) -> Recipe:
    """The same on other texts, under a name of its own."""
    kept = tuple(note for note in recipe.notes if note != USERS)
    return replace(
        recipe,
        name=f"{recipe.name}-{texts.key}",
        title=f"As {recipe.title.partition(':')[0]}: nine methods on {texts.data}",
        cells=cells,
        stand_in_for=recipe.name,
        instead_of=OFFICIAL,
        notes=(f"{deviation} No number of the poster belongs to it.", *kept),
    )


def table1_reddit2006() -> Recipe:
    """Reddit of 2006."""
    return standing_in(table1(), REDDIT_2006, OLD_REDDIT, table_cells(REDDIT_2006))


def table1_shakespeare() -> Recipe:
    """Shakespeare's plays."""
    return standing_in(table1(), SHAKESPEARE, ROLES, table_cells(SHAKESPEARE))


def figure1_reddit2006() -> Recipe:
    """The last rounds on Reddit of 2006."""
    return standing_in(figure1(), REDDIT_2006, OLD_REDDIT, figure_cells(REDDIT_2006))


FLOW: dict[str, Callable[[], Recipe]] = {
    "flow-table1": table1,
    "flow-table1-reddit2006": table1_reddit2006,
    "flow-table1-shakespeare": table1_shakespeare,
    "flow-figure1": figure1,
    "flow-figure1-reddit2006": figure1_reddit2006,
}
