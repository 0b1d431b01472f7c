"""The study of new clients: what they train on, and how its table is read."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from cold_start import cut_rows, run_cell
from cold_start_table import NUMBERS, ahead_from, section

import fedblocks as fb
from fedblocks.recipes.suite.beds import SuiteBed

DIGITS = {"name": "digits", "clients": 8, "partition": {"name": "iid"}, "split": [0.6, 0.2, 0.2]}
BED = SuiteBed(
    *("tiny", "a few rounds of the digits", DIGITS, 2, 8),
    net={"name": "mlp", "hidden": [4]},
    rounds=2,
    epochs=1,
    lr=0.3,
    seconds=1,
)


def test_new_clients_keep_their_first_examples_and_the_others_all() -> None:
    owners = np.repeat([0, 1, 2], 10)
    data = fb.Federation.from_users(torch.zeros(30, 2), torch.zeros(30, dtype=torch.long), owners)
    cut = cut_rows(data, [1, 2], 2)
    assert [len(cut.train[c]) for c in range(3)] == [len(data.train[0]), 2, 2]
    assert list(cut.train[1]) == list(data.train[1][:2])
    assert [len(cut_rows(data, [1], None).train[c]) for c in range(3)] == list(data.train.sizes)


def test_the_global_model_learns_nothing_from_a_new_client_and_a_tuned_one_does() -> None:
    world, tuned = run_cell(BED, "fedavg", 0), run_cell(BED, "fedavg_ft", 0)
    assert len({str(world[n]["accuracies"]) for n in NUMBERS}) == 1
    assert tuned["0"]["accuracies"] == world["all"]["accuracies"]
    assert tuned["all"]["accuracies"] != tuned["0"]["accuracies"]
    # 64 x 4 + 4 and 4 x 10 + 10 numbers of four bytes, for one of the two new clients
    assert world["all"]["bytes"] == 4 * (64 * 4 + 4 + 4 * 10 + 10)
    assert len(world["all"]["accuracies"]) == 2


def test_a_new_client_trains_what_it_keeps_before_it_is_tested() -> None:
    head = run_cell(BED, "fedrep", 0)
    assert head["all"]["accuracies"] != head["0"]["accuracies"]


def test_ahead_from_is_where_the_mean_stays_above_the_global_model() -> None:
    world = {n: [0.5, 0.5, 0.5] for n in NUMBERS}
    own = {n: [0.4, 0.4, 0.4] for n in NUMBERS}
    assert ahead_from(own, world) == "never"
    own |= {"1": [0.6] * 3, "20": [0.6] * 3, "all": [0.7, 0.7, 0.4]}  # 5 is behind
    assert ahead_from(own, world) == "20"  # differences .2, .2, -.1: 0.1 +- 0.43
    assert ahead_from({**own, "all": [0.7, 0.7, 0.71]}, world) == "**20**"


def test_the_table_has_means_and_leaves_out_methods_without_all_seeds(tmp_path: Path) -> None:
    def run(accuracy: float) -> dict[str, Any]:
        one = {"accuracies": [accuracy, accuracy + 0.1], "seconds": 0.3, "bytes": 2000}
        return {**dict.fromkeys(NUMBERS, one), "code": "x"}

    runs = {f"bed/{name}/{s}": run(0.5 + s / 10) for name in ("fedavg", "ifca") for s in (0, 1)}
    path = tmp_path / "cold-start.json"
    path.write_text(json.dumps({**runs, "bed/local/0": run(0.2)}))
    text = section(path)
    assert "| ifca | 60.0 | 60.0 | 60.0 | 60.0 | 60.0 | never | 2 | 150 |" in text
    assert "| fedavg | 60.0 | 60.0 | 60.0 | 60.0 | 60.0 | - | 2 | 150 |" in text
    assert "local" not in text and section(tmp_path / "none.json") == ""
