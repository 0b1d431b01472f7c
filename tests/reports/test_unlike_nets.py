"""Comparisons of clients with unlike nets: FedAvg cannot be, and the others are compared."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

import fedblocks as fb
from fedblocks.reports.html.gather import gather
from fedblocks.runs.progress import RunWarning

CONFIG = """
rounds = 1
net = { name = "mlp", hidden = [12, 6] }
method = "lg_fedavg"
data = { name = "digits", clients = 4 }

[groups.small]
clients = [0]
net = { hidden = [4, 6] }
"""
LEFT_OUT = "is left out, because these clients cannot train it: .*other names or shapes"


def test_fedavg_is_left_out_where_nets_have_no_average_and_nobody_asked_for_it(
    tmp_path: Path,
) -> None:
    (tmp_path / "c.toml").write_text(CONFIG)
    with pytest.warns(RunWarning, match=LEFT_OUT) as caught:
        found = fb.compare(tmp_path / "c.toml", methods=["lg_fedavg"], seeds=1, out=tmp_path / "c")
    assert {row["name"] for row in found.rows} == {"local", "lg_fedavg"}
    assert sum("is left out" in str(one.message) for one in caught) == 2  # FedAvg+, too
    assert all(row["to_fedavg"] is None for row in found.rows)
    plan = tomllib.loads((found.folder / "compare.toml").read_text())["compare"]
    assert plan["methods"] == ["local", "lg_fedavg"] and gather(found.folder).problems == []


def test_fedavg_over_unlike_nets_is_refused_where_somebody_asks_for_it(tmp_path: Path) -> None:
    (tmp_path / "c.toml").write_text(CONFIG)
    with pytest.raises(fb.UserError, match="other names or shapes"):
        fb.compare(tmp_path / "c.toml", methods=["fedavg"], seeds=1, out=tmp_path / "c")
    assert not (tmp_path / "c").exists()


def test_fedavg_is_compared_with_where_groups_differ_in_options_only(tmp_path: Path) -> None:
    alike = CONFIG.replace("net = { hidden = [4, 6] }", "method = { epochs = 2 }")
    (tmp_path / "c.toml").write_text(alike)
    found = fb.compare(tmp_path / "c.toml", methods=[], seeds=1, out=tmp_path / "c")
    assert {row["name"] for row in found.rows} == {"local", "fedavg", "fedavg_ft"}
