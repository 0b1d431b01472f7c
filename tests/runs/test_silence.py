"""What a program that only looks at numbers is told all the same."""

from __future__ import annotations

import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import fedblocks as fb
from fedblocks.nets import mlp
from fedblocks.runs.progress import RunWarning
from fedblocks.runs.storage.folder import RunFolder

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


def data_with_one_wrong_word(client: int, part: str) -> fb.Federation:
    """Twelve tokens, of which one row of a client's part has a thirteenth."""
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 12, (160, 5)), rng.integers(0, 3, 160)
    users = np.repeat(np.arange(4), 40)
    data = fb.Federation.from_users(x, y, users, split=(0.6, 0.2, 0.2))
    x[int(getattr(data, part)[client][0])] = 12
    return fb.Federation.from_users(x, y, users, split=(0.6, 0.2, 0.2))


def words() -> fb.FedAvg:
    module = torch.nn.Sequential(
        torch.nn.Embedding(12, 4), torch.nn.Flatten(), torch.nn.Linear(20, 3)
    )
    return fb.FedAvg(fb.Net.of(module), lr=0.1, batch_size=40)


def test_a_program_is_told_of_a_client_that_fails_in_every_round(tmp_path: Path) -> None:
    data = data_with_one_wrong_word(2, "train")
    with pytest.warns(RunWarning) as heard:
        result = fb.run(words(), data, 2, tmp_path / "run", engine="sequential")
    (text,) = [str(w.message) for w in heard if "refused" in str(w.message)]
    assert text.startswith("1 of 4 updates of the last round were refused (client 2; the latest: ")
    assert "failed: " in text and "IndexError" in text and "learning rate" not in text
    refused = result.refused()
    assert (refused.updates, refused.of) == (2, 8)  # four clients in each of two rounds
    assert refused.advice == ""
    notes: list[str] = []
    fb.resume(tmp_path / "run", words(), data, rounds="+1", on_note=lambda n: notes.append(n.text))
    assert len([note for note in notes if "updates of the last round were refused" in note]) == 1


def test_a_client_that_cannot_be_scored_has_lost_no_update(tmp_path: Path) -> None:
    data = data_with_one_wrong_word(2, "test")
    with pytest.warns(RunWarning, match=r"^client 2 could not be evaluated \(.*IndexError: "):
        result = fb.run(words(), data, 2, tmp_path / "run", engine="sequential")
    assert (result.refused().updates, result.refused().of) == (0, 8)
    with RunFolder.open(result.folder) as folder:
        rows = folder.store.rows("SELECT round, client, reason FROM refusals ORDER BY round")
    assert rows == [{"round": n, "client": 2, "reason": "not-scored"} for n in (1, 2)]


def test_advice_is_for_updates_that_are_not_finite(tmp_path: Path) -> None:
    with pytest.warns(RunWarning, match="of the last round.*try a lower learning rate"):
        fb.run(fedavg(TOO_LARGE), some_data(), 1, tmp_path / "run")
