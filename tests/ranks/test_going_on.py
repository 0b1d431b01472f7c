"""Runs of several ranks that go on: with more rounds, from their start, and with slots of each
client; and what keeps ranks from working together.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from fedblocks.config.code.ingredients import Ingredients
from fedblocks.core.errors import Interrupted, UserError
from fedblocks.runs.progress import RoundDone
from fedblocks.runs.python import config_of_objects
from fedblocks.runs.ranks import build
from fedblocks.runs.ranks.run import resume_part, run_part
from fedblocks.runs.result import load_run
from fedblocks.runs.run import resume, run
from fedblocks.runs.stopping import StopRun
from fedblocks.runs.storage.record import Note
from fedblocks.testing.federations import small_federation
from tests.runs.test_frozen_storage import probe

from .in_threads import play_in_threads
from .players import config_of_steps
from .test_in_threads import check_alike, config_of


@pytest.mark.parametrize("rounds", ["+1", 3])
def test_ranks_play_more_rounds_of_a_finished_run(
    rounds: int | str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = config_of_steps(rounds=2)
    for name in ("alone", "ranks"):
        run(config, tmp_path / name)
    resume(tmp_path / "alone", rounds=rounds)
    on = lambda ranks: resume_part(ranks, tmp_path / "ranks", lambda _: None, rounds=rounds)
    check_alike(play_in_threads(2, on, monkeypatch), tmp_path / "ranks", tmp_path / "alone")
    result = load_run(tmp_path / "ranks")
    assert (result.status, result.rounds, result.config.rounds) == ("finished", 3, 3)


def test_ranks_start_anew_where_no_checkpoint_is_left_and_say_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = config_of_steps(rounds=2)
    run(config, tmp_path / "alone")

    def stop(done: RoundDone) -> None:
        raise KeyboardInterrupt

    start = lambda ranks: run_part(ranks, config, tmp_path / "ranks", stop)
    play_in_threads(2, start, monkeypatch)
    shutil.rmtree(tmp_path / "ranks" / "checkpoints")
    (tmp_path / "ranks" / "checkpoints").mkdir()
    notes: list[Note] = []
    on = lambda ranks: resume_part(ranks, tmp_path / "ranks", lambda _: None, None, notes.append)
    check_alike(play_in_threads(2, on, monkeypatch), tmp_path / "ranks", tmp_path / "alone")
    assert any("start" in note.text and note.level == "warning" for note in notes), notes


@pytest.mark.parametrize("name", ["fedamp"])
def test_slots_of_each_client_are_those_of_one_process(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = config_of(name)
    run(config, tmp_path / "alone")
    part = lambda ranks: run_part(ranks, config, tmp_path / "ranks")
    check_alike(play_in_threads(2, part, monkeypatch), tmp_path / "ranks", tmp_path / "alone")


def said_by(**changes: Any) -> dict[str, Any]:
    usual = {
        "code": {"python": "3.12", "torch": "2.1"},
        "config": {"rounds": 2, "method": {"name": "a", "lr": 0.1}},
        "own code": [{"defines": "Own", "hash": 1}, {"defines": "Other", "hash": 2}],
    }
    return {**usual, **changes}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"code": {"python": "3.12", "torch": "2.2"}},
            "rank 2 has another torch than rank 0: 2.2, not 2.1",
        ),
        (
            {"config": {"rounds": 2, "method": {"name": "a", "lr": 0.2}}},
            "rank 2 has another configuration than rank 0: method.lr",
        ),
        (
            {"own code": [{"defines": "Own", "hash": 1}, {"defines": "Other", "hash": 3}]},
            "rank 2 has other code of yours than rank 0: Other",
        ),
        (
            {"own code": [{"defines": "Own", "hash": 1}]},
            "rank 2 has other code of yours than rank 0: its files",
        ),
    ],
)
def test_a_rank_with_other_code_or_settings_is_named(changes: dict[str, Any], message: str) -> None:
    build._refuse_others([said_by(), said_by()])
    with pytest.raises(UserError) as error:
        build._refuse_others([said_by(), said_by(), said_by(**changes)])
    assert error.value.message.startswith(message)


@pytest.mark.parametrize(
    ("number", "ranks", "gpu", "why"),
    [(1, 2, 1, "there"), (3, 4, 1, "there; 4 ranks share 2"), (2, 3, 0, "there; 3 ranks share 2")],
)
def test_each_rank_has_the_gpu_of_its_number_and_shares_it_where_they_are_few(
    number: int, ranks: int, gpu: int, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen: list[torch.device] = []
    monkeypatch.setattr(build, "device_of", lambda config: (torch.device("cuda"), "there"))
    monkeypatch.setattr(build, "local_number", lambda: number)
    monkeypatch.setattr(build, "local_ranks", lambda: ranks)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", chosen.append)
    config: Any = SimpleNamespace()
    device = torch.device("cuda", gpu)
    assert build._device(config) == (device, why) and chosen == [device]
    monkeypatch.setattr(build, "device_of", lambda config: (torch.device("cpu"), "none"))
    assert build._device(config) == (torch.device("cpu"), "none") and chosen == [device]


def test_several_ranks_cannot_have_one_gpu_by_its_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "device_of", lambda config: (torch.device("cuda:1"), "there"))
    with pytest.raises(UserError, match="cuda:1 is one GPU, and this is one of several ranks"):
        build._device(config_of_steps())


def stop_after(rounds: int, how: BaseException) -> Any:
    def stop(done: RoundDone) -> None:
        if done.round == rounds:
            raise how

    return stop


def test_ranks_go_on_where_a_listener_had_seen_enough(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one process does: the rounds that were planned are played."""
    config = config_of_steps(rounds=3)
    for name in ("alone", "ranks"):
        run(config, tmp_path / name, stop_after(2, StopRun("enough")))
    assert resume(tmp_path / "alone").rounds == 3
    on = lambda ranks: resume_part(ranks, tmp_path / "ranks", lambda _: None)
    check_alike(play_in_threads(2, on, monkeypatch), tmp_path / "ranks", tmp_path / "alone")
    assert load_run(tmp_path / "ranks").rounds == 3


@pytest.mark.parametrize(
    ("other", "said"),
    [
        (probe(0.5), 'the frozen block "all/body" is not the one that the run was started with'),
        (probe(), ""),
    ],
)
def test_ranks_go_on_with_the_frozen_block_that_a_run_began_with(
    other: Any, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = small_federation()
    settings = {"engine": "sequential", "device": "cpu"}
    config = config_of_objects(Ingredients.of(probe(), data), 3, {}, settings)
    start = lambda ranks: run_part(
        ranks, config, tmp_path / "ranks", stop_after(1, KeyboardInterrupt())
    )
    play_in_threads(2, start, monkeypatch)
    on = lambda ranks: resume_part(ranks, tmp_path / "ranks", lambda _: Ingredients.of(other, data))
    ends = play_in_threads(2, on, monkeypatch)
    if said:
        assert all(said in str(end) for end in ends), ends
    else:
        assert ends == [tmp_path / "ranks"] * 2


def test_ranks_do_not_go_on_from_a_checkpoint_of_another_net(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its blocks have the same names, and tensors of other shapes."""
    config = config_of_steps(rounds=3)
    wide = config_of_steps(rounds=3, net={"name": "mlp", "hidden": [7]})
    for name, own in (("ranks", config), ("wide", wide)):
        with pytest.raises(Interrupted):
            run(own, tmp_path / name, stop_after(2, KeyboardInterrupt()))
    shutil.rmtree(tmp_path / "ranks" / "checkpoints")
    shutil.copytree(tmp_path / "wide" / "checkpoints", tmp_path / "ranks" / "checkpoints")
    on = lambda ranks: resume_part(ranks, tmp_path / "ranks", lambda _: None)
    ends = play_in_threads(2, on, monkeypatch)
    assert all("holds other blocks than the method has" in str(end) for end in ends), ends
