"""Methods and data as Python objects: run, resumed, compared, and looked at."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import fedblocks as fb
from fedblocks.core.errors import UserError


class Small(nn.Module):
    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.body, self.fc = nn.Linear(6, width), nn.Linear(width, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc(torch.relu(self.body(x)))  # type: ignore[no-any-return]


@dataclass(frozen=True, eq=False)
class Own(fb.FedPer):
    """Registered nowhere."""

    strength: float = 0.5


def some_data(seed: int = 0) -> fb.Federation:
    rng = np.random.default_rng(seed)
    x, y = rng.normal(size=(160, 6)).astype("float32"), rng.integers(0, 3, 160)
    return fb.Federation.from_users(x, y, np.repeat([f"truck-{n}" for n in range(4)], 40))


def some_net(width: int = 8) -> fb.Net:
    return fb.Net.of(lambda: Small(width), head="fc")


def stopped_after(rounds: int) -> Any:
    def on_round(done: fb.RoundDone) -> None:
        if done.round == rounds:
            raise KeyboardInterrupt

    return on_round


def test_a_run_resumed_in_python_ends_with_the_same_bits(tmp_path: Path, same_bits: Any) -> None:
    method, data = Own(some_net(), lr=0.1, batch_size=8), some_data()
    whole = fb.run(method, data, rounds=4, out=tmp_path / "whole", seed=2, cohort=2)
    with pytest.raises(fb.Interrupted):
        fb.run(
            method,
            data,
            rounds=4,
            out=tmp_path / "cut",
            seed=2,
            cohort=2,
            on_round=stopped_after(2),
        )
    resumed = fb.resume(tmp_path / "cut", Own(some_net(), lr=0.1, batch_size=8), some_data())
    assert whole.config.method.name == "Own" and whole.config.method.table["strength"] == 0.5
    assert same_bits(whole.state(), resumed.state()) and resumed.rounds == 4


@pytest.mark.parametrize(
    ("method", "data", "words"),
    [
        (Own(some_net(), lr=0.2, batch_size=8), some_data(), "method.lr was 0.1 and is 0.2"),
        (
            Own(some_net(9), lr=0.1, batch_size=8),
            some_data(),
            "net.tensors was body.weight 8 x 6, body.bias 8",
        ),
        (Own(some_net(), lr=0.1, batch_size=8), some_data(1), "data.hash was "),
        (
            fb.FedPer(some_net(), lr=0.1, batch_size=8),
            some_data(),
            "method.name was Own and is fedper",
        ),
        (None, None, "was started by a Python program"),
    ],
)
def test_resuming_with_anything_else_names_what_differs(
    tmp_path: Path, method: Any, data: Any, words: str
) -> None:
    own = Own(some_net(), lr=0.1, batch_size=8)
    with pytest.raises(fb.Interrupted):
        fb.run(own, some_data(), rounds=2, out=tmp_path / "r", on_round=stopped_after(1))
    with pytest.raises(UserError) as error:
        fb.resume(tmp_path / "r", method, data)
    assert words in error.value.message


def test_every_setting_of_a_configuration_can_be_said(tmp_path: Path) -> None:
    data = some_data()
    message: list[int] = []
    result = fb.run(
        fb.FedAvg(some_net(), batch_size=8),
        data,
        rounds=2,
        out=tmp_path / "r",
        seed=5,
        cohort=0.5,
        evaluation={"every": 2, "parts": ["test", "train"], "local": True},
        checkpoint={"every": 2, "keep": 3},
        engine="sequential",
        device="cpu",
        threads=1,
        chunk=7,
        precision="float32",
        unseen=0.25,
        allow_degenerate=True,
        memory="1GiB",
        processes=1,
        on_round=lambda done: message.append(done.round),
    )
    config = result.config
    assert (config.seed, config.cohort.size, config.evaluation.every, config.checkpoint.keep) == (
        5,
        0.5,
        2,
        3,
    )
    assert (config.engine, config.chunk, config.data.unseen, config.memory) == (
        "sequential",
        7,
        0.25,
        "1GiB",
    )
    assert message == [1, 2] and [row["round"] for row in result.curves()] == [2]
    assert {"test", "train", "unseen"} <= {part for row in result.clients() for part in row}


def test_clients_of_a_group_have_another_net(tmp_path: Path) -> None:
    methods = {
        "all": fb.Local(some_net(), batch_size=8),
        "small": fb.Local(some_net(4), batch_size=8),
    }
    result = fb.run(methods, some_data(), rounds=1, out=tmp_path / "r", groups={"small": [1, 3]})
    shapes = {
        client: tuple(state["model"]["fc.weight"].shape)
        for client, state in result.state().private.items()
    }
    assert shapes == {0: (3, 8), 1: (3, 4), 2: (3, 8), 3: (3, 4)}
    assert fb.resume(tmp_path / "r", methods, some_data()).status == "finished"


def test_a_comparison_of_methods_is_a_folder_that_goes_on_and_has_a_report(tmp_path: Path) -> None:
    pytest.importorskip("plotly", reason="a report needs plotly: pip install 'fedblocks[report]'")
    methods = [
        fb.Local(some_net(), batch_size=8),
        fb.FedAvg(some_net(), batch_size=8),
        Own(some_net(), batch_size=8),
    ]
    actual = fb.compare(methods, some_data(), rounds=2, seeds=2, out=tmp_path / "c")
    assert {row["name"] for row in actual.rows} == {"local", "fedavg", "Own"} and actual.rows[0][
        "seeds"
    ] == 2
    again = fb.compare(methods, some_data(), rounds=2, seeds=3, out=tmp_path / "c")
    assert again.rows[0]["seeds"] == 3 and "Own" in str(again)
    assert "Own" in actual.report().read_text()


def test_two_settings_of_one_method_are_compared_under_names_and_data_may_depend_on_the_seed(
    tmp_path: Path,
) -> None:
    methods = {
        "slow": fb.FedAvg(some_net(), lr=0.01, batch_size=8),
        "fast": fb.FedAvg(some_net(), batch_size=8),
    }
    actual = fb.compare(methods, some_data, rounds=1, seeds=2, out=tmp_path / "c")
    hashes = {
        run.config.data.options["hash"]
        for by_seed in actual.runs.values()
        for run in by_seed.values()
    }
    assert set(actual.runs) == {"slow", "fast"} and len(hashes) == 2
    with pytest.raises(UserError, match="two methods are called fedavg"):
        fb.compare(list(methods.values()), some_data(), rounds=1, out=tmp_path / "d")


def test_results_are_tables_that_print_well(tmp_path: Path) -> None:
    result = fb.run(fb.FedPer(some_net(), batch_size=8), some_data(), rounds=2, out=tmp_path / "r")
    summary = result.summary()
    assert summary["mean"] == pytest.approx(np.mean(list(result.accuracies().values())))
    assert (
        "bottom decile" in str(summary)
        and "validation" in str(summary)
        and "<table>" in summary._repr_html_()
    )
    first = result.clients()[0]
    assert (first["client"], first["name"], first["size"]) == (0, "truck-0", 28)
    assert first["test"] == result.accuracies()[0] and len(result.clients()) == 4
    assert [row["round"] for row in result.curves()] == [1, 2]
    assert result.curves()[-1]["test"] == pytest.approx(summary["mean"])


NET, DATA = some_net(), some_data()
FIRST = fb.FedAvg(NET, batch_size=8)
BAD_RUNS: list[tuple[tuple[Any, ...], dict[str, Any], str]] = [
    ((FIRST, DATA), {}, "say how many rounds"),
    ((FIRST,), {"rounds": 1}, "a method needs data"),
    ((FIRST, [1, 2]), {"rounds": 1}, "a list is not a Federation"),
    ((fb.FedAvg, DATA), {"rounds": 1}, "FedAvg is a class"),
    (("digits-fedavg",), {}, "'digits-fedavg' is a string, not a method"),
    ((fb.FedAvg(nn.Linear(6, 3)), DATA), {"rounds": 1}, "the net of FedAvg is a Linear"),  # type: ignore[arg-type]
    ((FIRST, DATA), {"rounds": 0}, "rounds: 0 is below 1"),
    ((FIRST, DATA), {"rounds": 1, "sed": 1}, "sed: there is no such setting"),
    ((FIRST, DATA), {"rounds": 1, "task": {"label_smoothing": 0.5}}, "task is no setting of a run"),
    ((FIRST, DATA), {"rounds": 1, "net": {"name": "nonsense"}}, "net is no setting of a run"),
    ((FIRST, DATA), {"rounds": 1, "method": "fedper"}, "method is no setting of a run"),
    ((FIRST, DATA), {"rounds": 1, "cohort": 9}, "9 clients a round, but there are 4"),
    (
        (FIRST, DATA),
        {"rounds": 1, "evaluation": {"evry": 1}},
        "evaluation.evry: there is no such field",
    ),
    ((FIRST, DATA), {"rounds": 1, "groups": {"b": [1]}}, 'the group "b" has no method'),
    (({"all": FIRST, "b": FIRST}, DATA), {"rounds": 1}, 'which clients use the method "b"?'),
    (
        ({"b": FIRST}, DATA),
        {"rounds": 1, "groups": {"b": [1]}},
        'client 0, "truck-0", is in no group',
    ),
    (
        ({"all": FIRST, "b": FIRST}, DATA),
        {"rounds": 1, "groups": {"b": [7]}},
        "there is no client 7",
    ),
    ((fb.read_config("digits-fedavg"),), {"rounds": 1}, "rounds beside a configuration"),
    ((fb.read_config("digits-fedavg"), DATA), {}, "data beside a configuration"),
]


@pytest.mark.parametrize(
    ("given", "settings", "words"), BAD_RUNS, ids=[words for _, _, words in BAD_RUNS]
)
def test_a_wrong_call_gets_one_clear_error(
    tmp_path: Path, given: tuple[Any, ...], settings: dict[str, Any], words: str
) -> None:
    with pytest.raises(UserError) as error:
        fb.run(*given, **settings, out=tmp_path / "r")
    assert words in error.value.message and error.value.fix
    assert not (tmp_path / "r").exists()


def test_every_setting_that_a_run_knows_is_told_to_whom_misspells_one() -> None:
    with pytest.raises(UserError) as error:
        fb.run(FIRST, DATA, rounds=1, samplr=None)  # type: ignore[call-arg]
    assert 'did you mean "sampler"' in error.value.fix and "unseen" in error.value.fix
    assert "task" not in error.value.fix and "net" not in error.value.fix.split(", ")


def test_a_comparison_refuses_what_it_would_only_record(tmp_path: Path) -> None:
    for more in ({"task": {"metrics": ["f1_macro"]}}, {"net": "mlp"}, {"groups": {"b": [1]}}):
        with pytest.raises(UserError, match=f"{next(iter(more))} is no setting of a run"):
            fb.compare([FIRST], DATA, rounds=1, seeds=1, out=tmp_path / "c", **more)  # type: ignore[arg-type]


def test_numbers_of_numpy_are_numbers(tmp_path: Path) -> None:
    result = fb.run(
        FIRST,
        DATA,
        rounds=np.int64(2),  # type: ignore[arg-type]
        out=tmp_path / "r",
        seed=np.int32(3),  # type: ignore[typeddict-item]
        cohort=np.float32(0.5),  # type: ignore[typeddict-item]
        evaluation={"every": np.int64(2)},
    )
    assert (result.config.seed, result.rounds, result.config.cohort.size) == (3, 2, 0.5)
    assert fb.resume(tmp_path / "r", FIRST, DATA, rounds=np.int64(3)).rounds == 3  # type: ignore[arg-type]


def test_a_run_of_a_notebook_says_where_to_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr("__main__.__file__", raising=False)  # as in a notebook
    with pytest.raises(fb.Interrupted) as stop:
        fb.run(FIRST, DATA, rounds=2, out=tmp_path / "r", on_round=stopped_after(1))
    assert "--code" not in stop.value.fix
    with pytest.raises(UserError) as error:
        fb.resume(tmp_path / "r")
    assert "in a notebook or a session without a file" in error.value.fix
