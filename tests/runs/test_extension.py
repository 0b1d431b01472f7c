"""More rounds for a run that is finished: as if it had been started with them."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import fedblocks as fb
from fedblocks.cli import main
from fedblocks.core.state import State

Table = dict[str, Any]
pytestmark = pytest.mark.filterwarnings("ignore:.*training rows", "ignore:rounds after")


def config(small: Table, rounds: int, **changes: Any) -> fb.Config:
    return fb.Config.of({**small, "rounds": rounds, **changes})


def with_lr(small: Table, **schedule: Any) -> Table:
    return {"method": {**small["method"], "lr": {"start": 0.2, **schedule}}}


@pytest.mark.parametrize("rounds", ["+2", "5", 5])
def test_an_extended_run_is_the_run_that_had_all_rounds_from_the_start(
    rounds: int | str, small: Table, tmp_path: Path, same_bits: Any
) -> None:
    fb.run(config(small, 3), tmp_path / "run")
    longer = fb.resume(tmp_path / "run", rounds=rounds)
    whole = fb.run(config(small, 5), tmp_path / "whole")
    assert (longer.status, longer.rounds, longer.config.rounds) == ("finished", 5, 5)
    assert same_bits(longer.state(), whole.state())
    assert list(longer.curves()) == list(whole.curves())


def test_a_run_can_be_extended_again_and_while_it_is_unfinished(
    small: Table, tmp_path: Path, same_bits: Any
) -> None:
    def stop(done: fb.RoundDone) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fb.run(config(small, 2), tmp_path / "run", on_round=stop)
    fb.resume(tmp_path / "run", rounds="+1")
    longer = fb.resume(tmp_path / "run", rounds="+2")
    assert same_bits(longer.state(), fb.run(config(small, 5), tmp_path / "whole").state())


def test_schedules_over_the_run_stay_at_their_last_value(
    small: Table, tmp_path: Path, same_bits: Any
) -> None:
    over = with_lr(small, name="cosine", end=0.02)
    heard: list[str] = []
    fb.run(config(small, 3, **over), tmp_path / "run")
    longer = fb.resume(tmp_path / "run", rounds="+2", on_note=lambda note: heard.append(note.text))
    # a whole number of rounds: the same curve, whatever the length of the run
    fixed = with_lr(small, name="cosine", end=0.02, rounds=3)
    whole = fb.run(config(small, 5, **fixed), tmp_path / "whole")
    assert same_bits(longer.state(), whole.state())
    assert longer.config.schedule_rounds == 3
    assert [note["text"] for note in longer.notes if note["level"] == "warning"].count(
        "rounds after 3 have the last value of method.lr"
    ) == 1
    again = fb.resume(tmp_path / "run", rounds="+1")
    assert again.config.schedule_rounds == 3


def test_the_configuration_of_an_extended_run_repeats_it(
    small: Table, tmp_path: Path, same_bits: Any
) -> None:
    fb.run(config(small, 2, **with_lr(small, name="linear", end=0.05)), tmp_path / "run")
    longer = fb.resume(tmp_path / "run", rounds="+2")
    again = fb.run(fb.read_config(str(tmp_path / "run" / "config.toml")), tmp_path / "again")
    assert same_bits(longer.state(), again.state())


@pytest.mark.parametrize("rounds", ["2", "+0", "more", "-3", "1.5", True, "+" + "9" * 12])
def test_what_is_no_extension_is_refused(rounds: Any, small: Table, tmp_path: Path) -> None:
    fb.run(config(small, 2), tmp_path / "run")
    with pytest.raises(fb.UserError, match="rounds = "):
        fb.resume(tmp_path / "run", rounds=rounds)
    assert fb.load_run(tmp_path / "run").status == "finished"


def test_a_run_of_objects_is_extended_with_the_same_objects(tmp_path: Path, same_bits: Any) -> None:
    method, data = fb.FedPer(fb.small_net(), lr=fb.Cosine(0.1, 0.01)), fb.small_federation()
    fb.run(method, data, 2, tmp_path / "run")
    with pytest.raises(fb.UserError, match="started by a Python program"):
        fb.resume(tmp_path / "run", rounds="+1")
    assert fb.load_run(tmp_path / "run").status == "finished"
    longer: State = fb.resume(tmp_path / "run", method, data, rounds="+1").state()
    fixed = fb.FedPer(fb.small_net(), lr=fb.Cosine(0.1, 0.01, rounds=2))
    assert same_bits(longer, fb.run(fixed, data, 3, tmp_path / "whole").state())


def test_the_command_extends_a_run(
    small: Table, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fb.run(config(small, 2), tmp_path / "run")
    with pytest.raises(SystemExit) as stop:
        main(["resume", str(tmp_path / "run"), "--rounds", "+2", "--quiet"])
    assert not stop.value.code
    assert "4 rounds" in capsys.readouterr().out
    assert fb.load_run(tmp_path / "run").rounds == 4


def chosen_first(candidates: fb.Candidates) -> list[int]:
    return list(candidates.ids[:1])


def test_a_refused_extension_changes_nothing(tmp_path: Path) -> None:
    method, data = fb.FedPer(fb.small_net(), lr=fb.Cosine(0.1, 0.01)), fb.small_federation()
    fb.run(method, data, 2, tmp_path / "run", sampler=chosen_first)
    before = (tmp_path / "run" / "config.toml").read_text()
    with pytest.raises(fb.UserError, match="must be passed again"):
        fb.resume(tmp_path / "run", method, data, rounds="+2")
    run = fb.load_run(tmp_path / "run")
    assert (run.status, run.rounds, run.config.rounds) == ("finished", 2, 2)
    assert (tmp_path / "run" / "config.toml").read_text() == before
    assert not [note for note in run.notes if note["text"].startswith("rounds after")]
    longer = fb.resume(tmp_path / "run", method, data, rounds="+2", sampler=chosen_first)
    assert (longer.status, longer.rounds) == ("finished", 4)


def stop_after(round: int) -> Callable[[fb.RoundDone], None]:
    def stop(done: fb.RoundDone) -> None:
        if done.round == round:
            raise fb.StopRun("enough")

    return stop


@pytest.mark.parametrize(("rounds", "total"), [("+1", 4), ("+5", 8), (5, 5)])
def test_a_run_that_was_stopped_early_has_that_many_rounds_more(
    rounds: int | str, total: int, small: Table, tmp_path: Path, same_bits: Any
) -> None:
    over = with_lr(small, name="cosine", end=0.02)
    fb.run(config(small, 6, **over), tmp_path / "run", on_round=stop_after(3))
    longer = fb.resume(tmp_path / "run", rounds=rounds)
    assert (longer.status, longer.rounds, longer.config.rounds) == ("finished", total, total)
    warned = any(note["text"].startswith("rounds after 6 have") for note in longer.notes)
    assert warned == (total > 6)
    # the curve of the six rounds that were planned
    fixed = with_lr(small, name="cosine", end=0.02, rounds=6)
    whole = fb.run(config(small, total, **fixed), tmp_path / "whole")
    assert same_bits(longer.state(), whole.state())
    assert fb.resume(tmp_path / "run", rounds="+1").rounds == total + 1


def test_a_run_with_fewer_rounds_than_planned_may_be_killed_between_two_writes(
    small: Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fb.run(config(small, 6), tmp_path / "run", on_round=stop_after(2))

    def die(path: Path, text: str) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr("fedblocks.runs.extension.write_atomically", die)
        fb.resume(tmp_path / "run", rounds="+1")
    assert fb.resume(tmp_path / "run", rounds="+1").rounds == 3


def test_an_early_end_by_patience_is_where_more_rounds_are_counted_from(
    small: Table, tmp_path: Path
) -> None:
    still = {"method": {**small["method"], "lr": 1e-12}, "stopping": {"patience": 3}}
    assert fb.run(config(small, 50, **still), tmp_path / "run").rounds == 4
    assert fb.resume(tmp_path / "run", rounds="+2").rounds == 6
