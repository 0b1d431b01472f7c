"""`fedblocks suite`: what it runs, prints and stores, on a bed that takes no time."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fedblocks.cli import main
from fedblocks.cli import suite as command
from fedblocks.config.registry import CODE
from fedblocks.methods import METHODS
from fedblocks.recipes.suite.beds import BEDS, SuiteBed
from fedblocks.recipes.suite.entrants import Entrant
from fedblocks.recipes.suite.scores import PANEL, REFERENCES
from fedblocks.recipes.suite.trial import SuiteTrial

Fedblocks = Callable[..., tuple[int, str, str]]
DATA = {"name": "digits", "clients": 5, "partition": {"name": "iid"}, "split": [0.6, 0.2, 0.2]}
TINY = SuiteBed(
    "tiny",
    "digits",
    *(DATA, 1, 5),
    net={"name": "mlp", "hidden": [4]},
    rounds=1,
    epochs=1,
    lr=0.3,
    seconds=1,
)
MINE = """
from dataclasses import dataclass
from fedblocks.methods import METHODS
from fedblocks.methods.local import Local

@dataclass(frozen=True, eq=False)
class Mine(Local):
    '''Local under another name.'''

METHODS["mine"] = Mine
"""
BROKEN = MINE.replace(
    "'''Local under another name.'''",
    "def phases(self):\n        raise RuntimeError('no such phase')",
)


@pytest.fixture
def fedblocks(
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    jobs: list[Any],
) -> Fedblocks:
    """Runs the command in this process, in an empty folder without data sets."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FEDBLOCKS_DATA", str(tmp_path / "data"))
    monkeypatch.setitem(BEDS, "tiny", TINY)  # type: ignore[arg-type]
    monkeypatch.setenv(CODE, "")
    monkeypatch.setitem(METHODS, "mine", METHODS["local"])  # taken out again at the end
    for module in ("scores", "trial"):  # a panel of three is as good, and faster
        monkeypatch.setattr(f"fedblocks.recipes.suite.{module}.PANEL", REFERENCES)

    def running(*words: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as stop:
            main(["suite", *words, "--jobs", "1"])
        captured = capsys.readouterr()
        return int(stop.value.code or 0), captured.out, captured.err

    return running


def test_a_method_is_run_beside_the_panel_and_nothing_twice(
    fedblocks: Fedblocks, jobs: list[Any]
) -> None:
    code, out, err = fedblocks("fedper", "--beds", "tiny", "--seeds", "2")
    assert code == 0, err
    assert "fedper: suite 1, 2 paired seeds" in out and "tiny" in out
    assert "On 1 bed " in out and "2 of 6 seeds: intervals are wide" in out
    names = {path.name for path in Path("results").glob("*.json")}
    assert names == {f"suite-1-{name}.json" for name in (*REFERENCES, "fedper")}
    assert len(jobs) == 2 * 4
    jobs.clear()
    fedblocks("fedper", "--beds", "tiny", "--seeds", "2")
    assert jobs == []
    fedblocks("fedper", "pfedmb", "--beds", "tiny", "--seeds", "2")
    assert {job["config"]["method"]["name"] for job in jobs} == {"pfedmb"}
    jobs.clear()
    fedblocks("fedper", "--beds", "tiny", "--seeds", "3")
    assert {job["config"]["seed"] for job in jobs} == {2} and len(jobs) == 4


def test_the_panel_of_eight_is_run_before_a_method_and_a_member_of_it_only_once() -> None:
    asked = [Entrant("fedper"), Entrant("ditto")]
    trial = SuiteTrial(asked, [TINY], 2, Path())
    assert [one.name for one in trial.everybody] == [*PANEL, "fedper"] and len(PANEL) == 8
    assert [cell.key for cell in trial.cells] == [f"tiny/{name}" for name in (*PANEL, "fedper")]


def test_the_same_seeds_give_the_same_numbers_in_another_folder(fedblocks: Fedblocks) -> None:
    words = ("fedper", "--beds", "tiny", "--seeds", "1", "--json")
    scores = []
    for folder in ("a", "b"):
        code, out, err = fedblocks(*words, "--out", folder)
        assert code == 0, err
        (row,) = json.loads(out)["methods"]
        (score,) = row["scores"]
        scores.append({**score, "seconds": None})
    assert scores[0] == scores[1] and scores[0]["gains"]["local"]["seeds"] == 1
    assert 1 <= scores[0]["rank"] <= 4 and scores[0]["new"] is not None


def test_a_bed_of_texts_counts_the_answers_of_its_view(
    fedblocks: Fedblocks, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, view in (("plain", "personal"), ("words", "shared")):
        monkeypatch.setitem(BEDS, name, replace(TINY, name=name, view=view))  # type: ignore[arg-type]
    code, _, err = fedblocks("ditto", "--beds", "plain,words", "--seeds", "1")
    assert code == 0, err
    cells = json.loads(Path("results/suite-1-ditto.json").read_text())["cells"]
    plain, words = (cells[f"{bed}/ditto"]["seeds"]["0"] for bed in ("plain", "words"))
    assert plain["test"] != words["test"] and plain["partition"] == words["partition"]


def test_held_out_variants_have_other_data_and_files_of_their_own(
    fedblocks: Fedblocks, jobs: list[Any]
) -> None:
    fedblocks("fedavg", "--beds", "tiny", "--seeds", "1", "--held-out")
    assert {job["config"]["data"]["seed"] for job in jobs} == {1000}
    assert Path("results/suite-1-heldout-fedavg.json").exists()
    assert not Path("results/suite-1-fedavg.json").exists()


def test_a_tuned_row_is_chosen_on_validation_data_with_equal_budgets(
    fedblocks: Fedblocks, jobs: list[Any]
) -> None:
    code, out, err = fedblocks("fedper", "--beds", "tiny", "--seeds", "1", "--tuned")
    assert code == 0, err
    assert "fedper, tuned: suite 1" in out
    for name in ("fedper", "local"):
        cells = json.loads(Path(f"results/suite-1-{name}.json").read_text())["cells"]
        entry = cells[f"tiny/{name}, tuned"]
        assert len(entry["tuning"]) == 8 and entry["seeds"]["0"]["value"] >= 0
        best = max(entry["tuning"], key=lambda one: one["validation"])
        assert entry["chosen"] == best["values"]
    tried = [job for job in jobs if job["part"] == "validation"]
    assert {job["config"]["data"]["seed"] for job in tried} == {5000} and len(tried) == 8 * 4


def test_a_bed_whose_data_are_absent_is_named_and_left_out(fedblocks: Fedblocks) -> None:
    code, out, err = fedblocks("local", "--beds", "tiny,hapt", "--seeds", "1")
    assert code == 0, err
    assert "left out: hapt, whose data are absent." in err and "hapt_raw.npz" in err
    assert "Absent, so there is no score of the whole suite: hapt." in out
    code, _, err = fedblocks("local", "--beds", "hapt,reddit")
    assert code == 3 and "the data of no bed that was asked for are there" in err


def test_a_method_of_a_file_enters_with_its_source(fedblocks: Fedblocks) -> None:
    Path("mine.py").write_text(MINE)
    words = ("mine", "--code", "mine.py", "--beds", "tiny", "--seeds", "1")
    code, out, err = fedblocks(*words)
    assert code == 0, err
    assert "Versions of mine that were tried here: 1." in out
    (first,) = Path("results").glob("suite-1-mine-*.json")
    cells = json.loads(first.read_text())["cells"]
    like = json.loads(Path("results/suite-1-local.json").read_text())["cells"]
    assert cells["tiny/mine"]["seeds"]["0"]["test"] == like["tiny/local"]["seeds"]["0"]["test"]
    Path("mine.py").write_text(MINE + "\n# another version\n")
    _, out, _ = fedblocks(*words)
    assert "Versions of mine that were tried here: 2." in out


def test_versions_are_counted_of_the_method_of_the_row(fedblocks: Fedblocks) -> None:
    """Local's name begins that of another entrant, and the other way round."""
    Path("mine.py").write_text(MINE.replace('METHODS["mine"]', 'METHODS["local2"]'))
    words = ("--code", "mine.py", "--beds", "tiny", "--seeds", "1")
    try:
        code, out, err = fedblocks("local", "local2", *words)
    finally:
        METHODS.pop("local2", None)  # type: ignore[attr-defined]
    assert code == 0, err
    assert out.count("Versions of ") == 1 and "Versions of local2 that were tried here: 1." in out


def test_a_method_that_fails_counts_as_local(fedblocks: Fedblocks) -> None:
    Path("mine.py").write_text(BROKEN)
    code, out, err = fedblocks(
        "mine", "--code", "mine.py", "--beds", "tiny", "--seeds", "1", "--json"
    )
    assert code == 0, err
    (row,) = json.loads(out)["methods"]
    (score,) = row["scores"]
    assert "no such phase" in score["error"]
    assert score["gains"]["local"]["difference"]["mean"] == 0


def test_runs_on_other_data_than_the_manifests_are_named(
    fedblocks: Fedblocks, monkeypatch: pytest.MonkeyPatch
) -> None:
    frozen = {"tiny": {"0": "0123456789abcdef"}}
    monkeypatch.setattr("fedblocks.recipes.suite.manifest.federations", lambda: frozen)
    _, out, _ = fedblocks("local", "--beds", "tiny", "--seeds", "2")
    assert out.count("other data than the suite's manifest") == 1 and "tiny, seed 0" in out


def test_results_of_another_manifest_are_refused(fedblocks: Fedblocks) -> None:
    fedblocks("local", "--beds", "tiny", "--seeds", "1")
    path = Path("results/suite-1-local.json")
    path.write_text(path.read_text().replace("manifest ", "manifest x"))
    code, _, err = fedblocks("local", "--beds", "tiny", "--seeds", "1")
    assert code == 2 and "was made with another manifest" in err


def test_a_stopped_budget_is_no_failure_and_says_how_to_go_on(fedblocks: Fedblocks) -> None:
    code, out, _ = fedblocks("local", "--beds", "tiny", "--budget", "0s")
    assert code == 0 and "nothing has been run yet" in out
    assert "stopped at the budget; go on with the same command" in out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "say which method"),
        (("fedpre",), 'there is no method "fedpre"'),
        (("fedper", "--beds", "hatp"), 'the suite has no bed "hatp"'),
        (("fedper", "--lite", "--tuned"), "--lite has no tuned rows"),
        (("fedper", "--budget", "soon"), '--budget "soon" is not a time'),
    ],
)
def test_a_wrong_word_is_refused_before_anything_runs(
    fedblocks: Fedblocks, jobs: list[Any], words: tuple[str, ...], message: str
) -> None:
    code, _, err = fedblocks(*words)
    assert code == 2 and message in err and jobs == []


def test_the_list_of_beds_says_which_data_are_absent(fedblocks: Fedblocks) -> None:
    code, out, _ = fedblocks("--list")
    assert code == 0 and "digits-groups" in out and "hapt (absent)" in out
    _, out, _ = fedblocks("--list", "--json")
    assert {row["name"] for row in json.loads(out)} == {*BEDS}


NAN = MINE.replace(
    "'''Local under another name.'''",
    "def predict(self, blocks, x):\n        return super().predict(blocks, x) * float('nan')",
)
NAN_SERVER = MINE.replace("local import Local", "fedavg import FedAvg as Local").replace(
    "'''Local under another name.'''",
    "def conclude(self, server, before, uploads, cohort):\n"
    "        return {n: {k: v * float('nan') for k, v in b.items()} for n, b in server.items()}",
)


@pytest.mark.parametrize(
    ("source", "said"),
    [
        (NAN, "4 of 4 updates of the last round were refused"),
        (NAN_SERVER, 'Mine.conclude gives NaN in block "model" in round 1'),
    ],
)
def test_what_a_run_would_warn_of_is_said_at_once_and_again_with_the_scores(
    fedblocks: Fedblocks, source: str, said: str
) -> None:
    Path("mine.py").write_text(source)
    words = ("mine", "--code", "mine.py", "--beds", "tiny", "--seeds", "2")
    code, out, err = fedblocks(*words)
    assert code == 0 and said in err
    lines = [line for line in out.splitlines() if line.startswith("warning: ")]
    assert len(lines) == 1 and lines[0].startswith("warning: tiny, seed 0: ")
    assert said in lines[0] and lines[0].endswith("; seed 1 likewise")
    _, out, err = fedblocks(*words, "--json")  # nothing is run any more
    (row,) = json.loads(out)["methods"]
    assert said in row["scores"][0]["warnings"]["0"] and said not in err


def test_a_run_whose_updates_are_all_used_has_no_warning(fedblocks: Fedblocks) -> None:
    _, out, err = fedblocks("fedavg", "--beds", "tiny", "--seeds", "1")
    assert "warning" not in out + err
    assert "warning" not in Path("results/suite-1-fedavg.json").read_text()


@pytest.mark.parametrize(
    ("name", "places"),
    [("mine", 9), ("ditto", 8), ("mine, tuned", 9), ("ditto, tuned", 8)],
)
def test_a_rank_is_among_the_panel_and_the_method_which_may_be_of_it(
    name: str, places: int
) -> None:
    assert command._rank({"name": name, "rank": 2.5}) == f"; average rank 2.5 of {places}"
    assert command._rank({"name": name, "rank": None}) == ""
