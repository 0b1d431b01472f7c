"""A run with a sampler of its own: models are read without it, and to go on it is asked for."""

import json
from pathlib import Path
from typing import Any

import pytest

import fedblocks as fb
from fedblocks.cli.app import main as run_command
from fedblocks.runs.storage.folder import RunFolder

pytestmark = pytest.mark.filterwarnings("ignore:.*training rows")


def main(words: list[str]) -> int:
    with pytest.raises(SystemExit) as end:
        run_command(words)
    return int(str(end.value.code))


def method() -> fb.Method:
    return fb.FedPer(fb.small_net(), lr=0.1)


def first(candidates: fb.Candidates) -> list[int]:
    return [candidates.ids[0]]


def uniform(candidates: fb.Candidates) -> list[int]:
    """Called like one of the library's."""
    return [candidates.ids[-1]]


@pytest.mark.parametrize("sampler", [fb.TraceSampler(rounds=[[0, 1], [2]]), first, uniform])  # type: ignore[arg-type]
def test_models_are_read_and_exported_without_the_sampler(sampler: Any, tmp_path: Path) -> None:
    data = fb.small_federation()
    run = fb.run(method(), data, 2, tmp_path / "run", sampler=sampler)
    model = fb.personal(run, "client-3", method(), data)
    assert model.client == 3 and model.round == 2
    file = fb.export_model(
        run.folder, 3, out=tmp_path / "m.safetensors", method=method(), data=data
    )
    assert file.exists()
    assert run.report(tmp_path / "report.html").exists()


def test_a_trace_of_a_file_that_is_gone_is_in_nobodys_way(tmp_path: Path) -> None:
    trace = tmp_path / "trace.csv"
    trace.write_text("round,client\n1,client-2\n2,1\n")
    config = [
        *("data.clients=6", "rounds=2"),
        f'cohort.sampler={{name="trace", path="{trace}"}}',
    ]
    run = fb.run(fb.read_config("digits-fedper", config), tmp_path / "run")
    trace.unlink()
    assert fb.personal(run, 0).round == 2
    out = ["export", str(run.folder), "--client", "client-2", "--out", str(tmp_path / "m.pt2")]
    assert main([*out, "--format", "pt2"]) == 0
    with pytest.raises(fb.DataError, match=r"cohort\.sampler: the trace .* cannot be read"):
        fb.resume(run.folder, rounds="+1")


def test_a_sampler_of_ones_own_is_asked_for_only_to_go_on(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    config = ["data.clients=6", "rounds=2", "cohort.sampler=mine"]
    monkeypatch.setitem(fb.SAMPLERS, "mine", lambda: first)
    run = fb.run(fb.read_config("digits-fedper", config), tmp_path / "run")
    monkeypatch.delitem(fb.SAMPLERS, "mine")
    assert fb.personal(run, 0).round == 2
    with pytest.raises(fb.UserError, match="sampler"):
        fb.resume(run.folder, rounds="+1")


@pytest.mark.parametrize("sampler", [first, uniform])
def test_to_go_on_the_sampler_must_be_passed_again(sampler: Any, tmp_path: Path) -> None:
    data = fb.small_federation()
    fb.run(method(), data, 1, tmp_path / "run", sampler=sampler)
    with pytest.raises(fb.UserError) as error:
        fb.resume(tmp_path / "run", method(), data, rounds="+1")
    assert "of its own" in error.value.message and sampler.__name__ in error.value.message
    assert "must be passed again" in error.value.message and "sampler=" in error.value.fix
    assert "trace" not in str(error.value)
    longer = fb.resume(tmp_path / "run", method(), data, rounds="+1", sampler=sampler)
    with RunFolder.open(longer.folder) as folder:
        who = folder.store.rows("SELECT DISTINCT client FROM traffic WHERE direction = 'up'")
    assert [row["client"] for row in who] == [0 if sampler is first else 5]


def test_a_trace_as_lists_goes_on_by_itself(tmp_path: Path) -> None:
    data, trace = fb.small_federation(), fb.TraceSampler(rounds=[[0, 1], ["client-2"]])  # type: ignore[arg-type]
    fb.run(method(), data, 1, tmp_path / "run", sampler=trace)
    assert fb.resume(tmp_path / "run", method(), data, rounds="+1").rounds == 2
    assert fb.resume(tmp_path / "run", method(), data, rounds="+1", sampler=trace).rounds == 3
    other = fb.TraceSampler(rounds=[[0, 1], ["client-3"]])  # type: ignore[arg-type]
    with pytest.raises(fb.UserError, match=r"cohort\.sampler\.rounds was"):
        fb.resume(tmp_path / "run", method(), data, rounds="+1", sampler=other)


def test_a_comparison_stopped_in_between_hands_its_sampler_to_a_command(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("compared.py").write_text(
        "import fedblocks as fb\n"
        "def first(candidates):\n    return [candidates.ids[0]]\n"
        "net, data = fb.small_net(), fb.small_federation()\n"
        "fb.compare([fb.Local(net), fb.FedAvg(net)], data, rounds=1, seeds=1, out='both', "
        "sampler=first)\n"
    )
    data = fb.small_federation()
    fb.compare(
        [fb.Local(fb.small_net()), fb.FedAvg(fb.small_net())], data, rounds=1, seeds=1, out="both",
        sampler=first,
    )  # fmt: skip
    words = ["resume", "both/runs/fedavg-0", "--rounds", "+1", "--code", "compared.py", "--quiet"]
    assert main(words) == 0
    assert fb.load_run("both/runs/fedavg-0").rounds == 2


OWN = """
import fedblocks as fb
fb.METRICS["exact"] = fb.Metric("exact", lambda outputs, y: 0.5)
fb.LOSSES["own"] = lambda outputs, y: (outputs - y).abs()
def first(candidates):
    return candidates.ids[:2]
fb.SAMPLERS["pair"] = lambda: first
fb.SAMPLERS["bare"] = first
"""


def test_the_code_of_metrics_losses_and_samplers_is_recorded_and_asked_for_by_name(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text(OWN)
    task = 'task={kind="regression", loss="own", metrics=["exact", "mae"]}'
    words = ["--set", task, "--set", "rounds=1", "--quiet"]
    run = ["run", "truck_ranges-fedper", *words, "--out", "run", "--set"]
    assert main([*run, "cohort.sampler=pair"]) == 2
    assert "--code FILE" in capsys.readouterr().err
    assert main([*run, "cohort.sampler=bare", "--code", "mine.py"]) == 2
    assert 'SAMPLERS["bare"] = lambda: function' in capsys.readouterr().err
    assert main([*run, "cohort.sampler=pair", "--code", "mine.py"]) == 0
    defines = [entry["defines"] for entry in json.loads(Path("run/code.json").read_text())]
    assert defines == ['sampler "pair"', 'loss "own"', 'metric "exact"']
    for kind, registry in (("metric", fb.METRICS), ("loss", fb.LOSSES), ("sampler", fb.SAMPLERS)):
        name = {"metric": "exact", "loss": "own", "sampler": "pair"}[kind]
        with monkeypatch.context() as without:
            without.delitem(registry, name)  # type: ignore[arg-type]
            assert main(["resume", "run", "--rounds", "+1", "--quiet"]) == 2
            shown = capsys.readouterr().err
            assert f'run needs the {kind} "{name}", which is not known here' in shown
            assert "add --code mine.py" in shown
