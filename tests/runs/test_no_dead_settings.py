"""Every setting of a configuration is felt: another value gives other data, or another run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fedblocks.config.model import Config
from fedblocks.config.sections import (
    CheckpointSection,
    CohortSection,
    DataSection,
    EvaluationSection,
    FaultsSection,
    StoppingSection,
    TaskSection,
)
from fedblocks.runs.federations import federation_of, hold_out
from fedblocks.runs.run import run
from fedblocks.runs.storage.folder import RunFolder

Table = dict[str, Any]
OPTIONS = {"rows": 60, "classes": 3, "features": 4}
DATA: Table = {"name": "gaussian", "clients": 4, "options": OPTIONS, "split": [0.6, 0.2, 0.2]}
OTHER_DATA: dict[str, Any] = {
    "name": "waves", "options": {**OPTIONS, "rows": 61}, "clients": 5,
    "partition": {"name": "dirichlet_labels", "alpha": 0.5},
    "shift": {"name": "permute_labels", "groups": 2},
    "split": [0.5, 0.3, 0.2], "stratified": True, "seed": 1, "unseen": 0.25,
}  # fmt: skip
SMALL: Table = {
    "seed": 3, "rounds": 4, "device": "cpu", "engine": "sequential", "data": DATA,
    "net": {"name": "mlp", "hidden": [3]},
    "method": {"name": "fedavg", "lr": 0.1, "batch_size": 8, "epochs": 1},
}  # fmt: skip
# section -> what it stands beside -> another value of each field
OTHER: dict[str, tuple[Table, dict[str, Any]]] = {
    "evaluation": ({}, {"every": 3, "parts": ["train"], "local": True}),
    "cohort": ({"size": 2}, {"size": 3, "sampler": {"name": "by_size"}}),
    "faults": ({"drop": 0.3}, {
        "drop": 0.8, "slow": 0.5, "crash": 0.5, "corrupt": 0.5, "clients": [0],
    }),
    "stopping": ({"patience": 2}, {"patience": 1, "least": 0.9, "part": "train"}),
    "task": ({"kind": "classification"}, {
        "metrics": ["f1_macro"], "class_weights": [1.0, 2.0, 3.0], "label_smoothing": 0.2,
    }),
    "checkpoint": ({"every": 1}, {"every": 3, "keep": 4}),
}  # fmt: skip
SECTIONS = {
    "evaluation": EvaluationSection, "cohort": CohortSection, "faults": FaultsSection,
    "stopping": StoppingSection, "task": TaskSection, "checkpoint": CheckpointSection,
}  # fmt: skip
CASES = [(section, field) for section, (_, others) in OTHER.items() for field in others]
NOT_TRIED = {("task", "kind"), ("task", "loss"), ("data", "testbed")}  # tests/tasks, tests/recipes


def test_no_setting_is_left_out_here() -> None:
    known = {(name, field) for name, section in SECTIONS.items() for field in section.model_fields}
    known |= {("data", field) for field in DataSection.model_fields}
    assert {*CASES, *(("data", field) for field in OTHER_DATA)} == known - NOT_TRIED


@pytest.mark.parametrize("field", OTHER_DATA)
def test_another_setting_of_the_data_gives_other_data(field: str) -> None:
    def told(data: Table) -> tuple[str, tuple[list[int], list[int]]]:
        config = Config.of({**SMALL, "data": data})
        federation = federation_of(config)
        return federation.hash(), hold_out(config, federation)

    other = {**DATA, field: OTHER_DATA[field]}
    if field == "name":
        other["options"] = {"rows": 60}
    assert told(other) != told(DATA) == told(DATA)


def trace(table: Table, folder: Path) -> list[Any]:
    """What is stored of a run, less its times."""
    result = run(Config.of(table), folder, None, lambda note: None)
    queries = (
        "SELECT round, clients, bytes_down, bytes_up FROM rounds",
        "SELECT round, part, view, client, correct, examples, loss, extra FROM client_metrics",
        "SELECT round, client, reason FROM refusals",
        "SELECT text FROM notes WHERE text LIKE 'stopped%'",
    )
    with RunFolder.open(folder) as opened:
        rows = [opened.store.rows(query) for query in queries]
    kept = sorted(path.name for path in (folder / "checkpoints").iterdir())
    return [rows, kept, result.metric]


@pytest.mark.parametrize("section", OTHER)
def test_another_setting_of_a_run_is_felt(section: str, tmp_path: Path) -> None:
    usual, others = OTHER[section]
    small = {**SMALL, "evaluation": {"parts": ["train", "validation", "test"]}}
    before = trace({**small, section: usual}, tmp_path / "usual")
    for field, value in others.items():
        after = trace({**small, section: {**usual, field: value}}, tmp_path / field)
        assert after != before, f"{section}.{field} = {value} changes nothing"
