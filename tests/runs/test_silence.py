"""What a program that only looks at numbers is told all the same."""

from __future__ import annotations

import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import fedblocks as fb
from fedblocks.nets import mlp
from fedblocks.runs.progress import RunWarning

TOO_LARGE = 1e30  # a learning rate after whose first step nothing is finite


def some_data(split: tuple[float, float, float] = (0.6, 0.2, 0.2)) -> fb.Federation:
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(160, 6)).astype("float32"), rng.integers(0, 3, 160)
    return fb.Federation.from_users(x, y, np.repeat(np.arange(4), 40), split=split)


def fedavg(lr: float = 0.1) -> fb.FedAvg:
    return fb.FedAvg(mlp((6,), 3, hidden=(4,)), lr=lr, batch_size=8)


def test_a_warning_of_a_run_becomes_pythons_where_nobody_listens(tmp_path: Path) -> None:
    with pytest.warns(RunWarning, match="every update was refused") as heard:
        fb.run(fedavg(TOO_LARGE), some_data(), 1, tmp_path / "run")
    assert {warning.filename for warning in heard} == {__file__}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fb.run(fedavg(TOO_LARGE), some_data(), 1, tmp_path / "heard", on_note=lambda note: None)


def test_a_summary_says_how_many_updates_are_not_in_it(tmp_path: Path) -> None:
    with pytest.warns(RunWarning):
        result = fb.run(fedavg(TOO_LARGE), some_data(), 2, tmp_path / "run")
    assert "4 of 4 updates of the last round were refused" in str(result.summary())
    assert "refused" in result.summary()._repr_html_()
    calm = fb.run(fedavg(), some_data(), 1, tmp_path / "calm")
    assert "refused" not in str(calm.summary()) and "rows" not in str(calm.summary())


def test_a_comparison_says_whose_updates_were_refused(tmp_path: Path) -> None:
    methods = {"calm": fedavg(), "wild": fedavg(TOO_LARGE)}
    with pytest.warns(RunWarning, match="every update was refused"):
        comparison = fb.compare(methods, some_data(), seeds=2, rounds=1, out=tmp_path / "both")
    lines = [line for line in str(comparison).splitlines() if "were refused" in line]
    assert len(lines) == 1 and lines[0].startswith("wild: 4 of 4 updates of the last round")


def test_a_client_without_test_rows_has_a_row_of_its_own(tmp_path: Path) -> None:
    data = some_data()
    rows = [own if client != 1 else own[:0] for client, own in enumerate(data.test)]
    fewer = replace(data, test=type(data.test).of(rows))
    with pytest.warns(RunWarning, match='1 client has no test rows: "1"'):
        result = fb.run(fedavg(), fewer, 1, tmp_path / "run")
    table = result.clients()
    assert [row["client"] for row in table] == [0, 1, 2, 3]
    assert [row["test"] is None for row in table] == [False, True, False, False]
    assert "-" in str(table).splitlines()[2].split()
    assert "1 of 4 clients have no test rows" in str(result.summary())


def test_nobody_with_test_rows_is_said_before_training_and_instead_of_a_summary(
    tmp_path: Path,
) -> None:
    with pytest.warns(RunWarning, match="no client has test rows: split="):
        result = fb.run(fedavg(), some_data((0.8, 0.2, 0.0)), 1, tmp_path / "run")
    with pytest.raises(fb.UserError, match=r"no client has test rows\n  fix: .*split="):
        result.summary()


def test_ctrl_c_ends_a_program_that_catches_every_exception(tmp_path: Path) -> None:
    def stop(done: fb.RoundDone) -> None:
        raise KeyboardInterrupt

    began: list[int] = []
    with pytest.raises(KeyboardInterrupt, match=r"round 1 is stored\n  fix: go on with: fedblocks"):
        for number in range(2):
            began.append(number)
            try:
                fb.run(fedavg(), some_data(), 2, tmp_path / str(number), on_round=stop)
            except Exception:
                continue
    assert began == [0] and fb.Interrupted.exit_code == 130
