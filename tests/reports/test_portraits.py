"""Portraits: what models are made of, kept at every evaluation, and shown with names
that people can read.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from fedblocks import METHODS, Config, Federation, Net, run, write_report
from fedblocks.core.errors import UserError
from fedblocks.data.federation import Parts
from fedblocks.engines.round import evaluate_parts, run_round
from fedblocks.engines.sequential import Sequential
from fedblocks.engines.vectorised import Vectorised
from fedblocks.reports.html import write_figures
from fedblocks.reports.html.labels import gate_names, readable
from fedblocks.runs.storage.folder import RunFolder
from fedblocks.testing import EXAMPLES

PORTRAITS = {  # method -> name, how many numbers
    "ifca": ("choice", 2),
    "clustered": ("membership", 3),
    "modfl": ("operation cohort", 2),
    "fedmn": ("gates", 10),
    "fedmn_reference": ("gates", 10),
    "flow": ("route", 3),
    "flow_v2": ("route", 3),
    "dynamic_routing": ("route", 2),
}
ADD_UP_TO_1 = ("ifca", "modfl", "flow", "flow_v2", "dynamic_routing")
SPREADS = ("flow", "flow_v2")  # whose last number is how far instances differ


@pytest.mark.parametrize("method", PORTRAITS)
def test_every_engine_makes_the_same_portrait_of_every_client(method: str) -> None:
    example = EXAMPLES[method]()
    experiment = example.experiment()
    state, _ = run_round(experiment, experiment.start(), example.cohorts()[0], Sequential())
    name, width = PORTRAITS[method]
    one, many = (
        evaluate_parts(experiment, state, example.everybody, engine, ["test"]).portraits[name]
        for engine in (Sequential(), Vectorised(chunk=4))
    )
    assert list(one) == example.everybody and {len(numbers) for numbers in one.values()} == {width}
    assert np.array(list(one.values())) == pytest.approx(np.array(list(many.values())), abs=1e-9)
    if method in ADD_UP_TO_1:
        shares = width - (method in SPREADS)
        assert np.array(list(one.values()))[:, :shares].sum(1) == pytest.approx(1.0)


def test_methods_without_a_portrait_are_not_asked_for_one() -> None:
    example = EXAMPLES["fedavg"]()
    assert (
        evaluate_parts(
            example.experiment(), example.experiment().start(), [0, 1], Sequential(), ["test"]
        ).portraits
        == {}
    )


def test_the_choice_is_the_model_with_the_lowest_loss() -> None:
    example = EXAMPLES["ifca"]()
    experiment = example.experiment()
    state = experiment.start()
    actual = evaluate_parts(experiment, state, [0], Sequential(), ["test"]).portraits["choice"][0]
    rows = torch.from_numpy(experiment.data.train[0])
    losses = [
        nn.functional.cross_entropy(
            experiment.methods["all"].net(
                {k: v[slot] for k, v in state.server["clusters"].items()}, experiment.data.x[rows]
            ),
            experiment.data.y[rows],
        )
        for slot in range(2)
    ]
    assert actual == [float(losses[0] <= losses[1]), float(losses[0] > losses[1])]


@pytest.fixture(scope="module")
def clusters(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two rounds of IFCA among six clients of two kinds."""
    home, rng = tmp_path_factory.mktemp("p"), np.random.Generator(np.random.PCG64(0))
    parts = []
    for client in range(6):
        drawn = [rng.normal(size=(n, 4)).astype("float32") for n in (20, 6, 6)]
        parts.append(Parts(*((x, ((x[:, 0] > 0) ^ (client % 2)).astype(int)) for x in drawn)))
    Federation.from_parts(parts, names=[f"$x_{i}$ <b>" for i in range(6)], classes=2).save(
        home / "f.npz"
    )
    table: dict[str, Any] = {
        "rounds": 2,
        "net": {"name": "mlp", "hidden": [4]},
        "method": {"name": "ifca", "clusters": 2, "batch_size": 4},
        "data": {"name": "saved", "options": {"path": str(home / "f.npz")}},
    }
    return run(Config.of(table), home / "r").folder


def test_the_choices_of_every_round_are_in_the_record_and_on_a_map(clusters: Path) -> None:
    with RunFolder.open(clusters) as folder:
        rows = folder.store.rows(
            "SELECT round, client, numbers FROM snapshots WHERE name = 'choice'"
        )
    assert {(row["round"], row["client"]) for row in rows} == {
        (r, c) for r in (1, 2) for c in range(6)
    }
    assert all(sorted(json.loads(row["numbers"])) == [0.0, 1.0] for row in rows)
    pytest.importorskip("plotly", reason="reports need plotly: pip install 'fedblocks[report]'")
    text = write_report(clusters).read_text(encoding="utf-8")
    assert "choice of ifca, round by round" in text and "Move the slider" in text


def test_charts_become_figures_for_papers(clusters: Path, tmp_path: Path) -> None:
    pytest.importorskip(
        "matplotlib", reason="figures need matplotlib: pip install 'fedblocks[plot]'"
    )
    actual = write_figures(clusters, tmp_path / "f")
    names = {path.name for path in actual}
    assert {
        "curve-round.pdf",
        "curve-round.svg",
        "distribution.pdf",
        "map-1.svg",
        "labels-1.pdf",
    } <= names
    assert all(
        path.read_bytes().startswith(b"%PDF" if path.suffix == ".pdf" else b"<?xml")
        for path in actual
    )
    assert "$x_0$ &lt;b&gt;" in (tmp_path / "f" / "map-1.svg").read_text()  # a name, and no formula
    again = {path.name: path.read_bytes() for path in write_figures(clusters, tmp_path / "g")}
    assert again == {path.name: path.read_bytes() for path in actual}


def test_figures_without_matplotlib_say_what_to_install(
    clusters: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(UserError) as error:
        write_figures(clusters, clusters / "f")
    assert "matplotlib" in error.value.message and "fedblocks[plot]" in error.value.fix


def test_gates_are_named_from_module_to_module() -> None:
    assert gate_names((2, 1)) == ["1.0 → 2.0", "1.1 → 2.0", "2.0 → out"]


def test_numbers_are_shown_as_people_read_them() -> None:
    net = Net.of(lambda: nn.Sequential(nn.Linear(3, 2), nn.ReLU(), nn.Linear(2, 2)))
    logits = np.zeros((1, 1, 4))
    values, names = readable(
        METHODS["pfedmb"](net=net, branches=2), "alpha", logits, ["0", "1", "2", "3"]
    )  # type: ignore[call-arg]
    assert values.tolist() == [[[0.5, 0.5, 0.5, 0.5]]] and names[1] == "layer 0, branch 1"
    assert readable(METHODS["fedem"](net=net), "mixture", logits[..., :3], list("abc"))[1] == [
        "0",
        "1",
        "2",
    ]
    assert readable(METHODS["ifca"](net=net), "choice", logits, list("abcd"))[1] == list("abcd")
