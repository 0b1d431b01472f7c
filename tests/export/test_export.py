"""Exported models: they say what the run's own models say, in every format, and are as
small as they can be.
"""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch

from fedblocks import METHODS, Net, export_model, load_run, personal
from fedblocks.cli import main
from fedblocks.core.client_names import client_number
from fedblocks.core.errors import UserError
from fedblocks.core.method import Method
from fedblocks.engines.round import run_round
from fedblocks.engines.sequential import Sequential
from fedblocks.export import models
from fedblocks.export.fold import Noted, fold
from fedblocks.export.formats import read
from fedblocks.export.personal import personal_of
from fedblocks.runs.progress import RunWarning
from fedblocks.runs.storage.code_record import code_options
from fedblocks.runs.storage.folder import RunFolder
from fedblocks.testing import EXAMPLES

from .conftest import Start

# one for each way in which a model leaves; others are of the same ways
FAMILIES = ("fedavg", "fedem", "fedmn", "flow")
CLIENT = 1


def check(start: Start, method: str, format: Any, tmp_path: Path, **options: Any) -> None:
    """A file's logits are those of the client's own model, in batches of any size."""
    result = start(method, **options)
    actual = personal(result, CLIENT)
    path = export_model(result.folder, CLIENT, format, tmp_path / f"m.{format}")
    model = read(path, trust=True)
    for many in (1, 2, 9):
        x = actual.examples(many).x
        torch.testing.assert_close(model.logits(x), actual.predict(x), atol=1e-5, rtol=0)


@pytest.mark.parametrize("method", METHODS)
def test_a_file_of_tensors_makes_the_same_logits(method: str, start: Start, tmp_path: Path) -> None:
    check(start, method, "safetensors", tmp_path)


@pytest.mark.parametrize("method", FAMILIES)
def test_a_graph_makes_the_same_logits(method: str, start: Start, tmp_path: Path) -> None:
    check(start, method, "pt2", tmp_path)


@pytest.mark.parametrize("method", FAMILIES)
def test_an_onnx_file_makes_the_same_logits(method: str, start: Start, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime", reason="the extra `export` is not installed")
    check(start, method, "onnx", tmp_path)


@pytest.mark.soak
@pytest.mark.parametrize("format", ["pt2", "onnx"])
@pytest.mark.parametrize("method", METHODS)
def test_every_method_leaves_as_a_graph(
    method: str, format: str, start: Start, tmp_path: Path
) -> None:
    check(start, method, format, tmp_path)


@pytest.mark.soak
@pytest.mark.parametrize("format", ["safetensors", "pt2", "onnx"])
def test_mixed_outputs_need_both_nets(format: str, start: Start, tmp_path: Path) -> None:
    check(start, "apfl", format, tmp_path, mixing="outputs")


@pytest.mark.parametrize("method", METHODS)
def test_the_personal_model_is_the_one_that_was_evaluated(method: str, start: Start) -> None:
    result = start(method)
    with RunFolder.open(result.folder) as folder:
        rows = folder.store.metrics("test", "personal", 2)
    for row in rows[:2]:
        actual = personal(result, row["client"])
        examples = actual.examples(100)
        assert int((actual.predict(examples.x).argmax(-1) == examples.y).sum()) == row["correct"]


def test_the_branches_of_pfedmb_are_merged_into_one_net(start: Start, tmp_path: Path) -> None:
    result = start("pfedmb", branches=4)
    card = read(export_model(result.folder, CLIENT, "safetensors", tmp_path / "m.safetensors")).card
    # a perceptron 6-5-3; a weight for each branch of two layers
    net, alphas = 6 * 5 + 5 + 5 * 3 + 3, 2 * 4
    assert (card.kind, card.numbers, card.numbers_before) == ("net", net, 4 * net + alphas)


def test_a_plain_net_has_the_names_of_its_state_dict(start: Start, tmp_path: Path) -> None:
    export_model(start("ditto").folder, CLIENT, "safetensors", tmp_path / "m.safetensors")
    tensors = safetensors.torch.load_file(tmp_path / "m.safetensors")
    module = torch.nn.Sequential(
        torch.nn.Flatten(), torch.nn.Linear(6, 5), torch.nn.ReLU(), torch.nn.Linear(5, 3)
    )
    module.load_state_dict(tensors)
    actual = personal(start("ditto"), CLIENT)
    x = actual.examples(9).x
    torch.testing.assert_close(module(x), actual.predict(x), atol=1e-5, rtol=0)


def test_modules_that_fedmn_does_not_use_stay_behind(start: Start) -> None:
    actual = personal(start("fedmn"), CLIENT)
    # to middle blocks, to outputs, to the prediction: output 0
    gates = torch.tensor([1.0, 0, 0, 1, 1, 0, 0, 1, 1, 0])
    assert gates.shape == actual.blocks["gates"]["value"].shape
    blocks = {**actual.blocks, "gates": {"value": gates}}
    slim, kept = actual.method.slim(blocks)
    assert slim.options()["modules"] == (1, 1, 1) and "router" not in kept
    x = actual.examples(9).x
    torch.testing.assert_close(slim.predict(kept, x), actual.method.predict(blocks, x))


def test_blocks_that_are_not_read_stay_behind(start: Start) -> None:
    names = {name.rpartition("/")[0] for name in fold(personal(start("flow"), CLIENT)).names}
    assert names == {"shared", "local", "router"}
    names = {
        name.rpartition("/")[0] for name in fold(personal(start("fedmn_reference"), CLIENT)).names
    }
    assert names == {"encoder", "module.2", "output", "gates"}  # the router has done its work


def test_running_statistics_leave_with_the_net() -> None:
    example = EXAMPLES["fedbn"]()
    experiment = example.experiment()
    state, _ = run_round(experiment, experiment.start(), [0, 1, 2], Sequential())
    actual = personal_of(experiment, state, CLIENT)
    folded = fold(actual)
    assert any(name.endswith("running_mean") for name in folded.names) and isinstance(
        folded.core, Net
    )
    x = actual.examples(9).x
    torch.testing.assert_close(folded(x), actual.predict(x))


def test_a_dictionary_notes_what_is_asked_of_it() -> None:
    asked = Noted({"a": 1, "b": 2, "c": 3})
    assert asked["a"] == 1 and asked.get("b") == 2 and asked.get("z", 0) == 0
    assert list(asked.read) == ["a", "b"]
    assert {**asked} == {"a": 1, "b": 2, "c": 3} and set(asked.read) == {"a", "b", "c"}


def test_the_card_says_where_a_model_comes_from(start: Start, tmp_path: Path) -> None:
    result = start("fedavg")
    path = export_model(result.folder, CLIENT, "safetensors", tmp_path / "m.safetensors")
    card = read(path).card
    with RunFolder.open(result.folder) as folder:
        assert card.data_hash == folder.store.meta("federation")
        rows = {row["client"]: row for row in folder.store.metrics("test", "personal", 2)}
    assert card.accuracy == pytest.approx(rows[CLIENT]["correct"] / rows[CLIENT]["examples"])
    assert (card.method, card.client, card.round, card.input_shape, card.classes) == (
        "fedavg",
        CLIENT,
        2,
        [6],
        3,
    )
    text = (tmp_path / "m.safetensors.md").read_text()
    assert (
        "fedblocks export NEW_RUN --client 1 --format safetensors" in text
        and card.data_hash in text
    )


def test_a_model_that_differs_is_not_kept(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    result, honest = start("fedavg"), models.read

    def wrong(path: Path, method: Method | None = None, trust: bool = False) -> models.Model:
        model = honest(path, method, trust=trust)
        return models.Model(
            model.card,
            lambda x: model.logits(x) + 2e-5 * max(1.0, float(model.logits(x).abs().max())),
        )

    monkeypatch.setattr(models, "read", wrong)
    with pytest.raises(
        UserError,
        match=r"differs from the original by .* on inputs of client "
        r"1.*nothing was kept",
    ):
        export_model(result.folder, CLIENT, "safetensors", tmp_path / "m.safetensors")
    assert list(tmp_path.iterdir()) == []


def test_what_cannot_be_exported_is_refused_with_a_reason(start: Start, tmp_path: Path) -> None:
    folder = start("fedavg").folder
    cases: list[tuple[str, tuple[Any, ...]]] = [
        ("there is no client 4 among 4 clients", (folder, 4)),
        ("there is no client -1", (folder, -1)),
        ("does not exist", (tmp_path / "nowhere", 0)),
        ("is empty", (tmp_path, 0)),
        ("does not end in .onnx", (folder, 0, "onnx", tmp_path / "m.pt2")),
    ]
    for said, arguments in cases:
        with pytest.raises(UserError, match=said):
            export_model(*arguments)


def test_a_run_without_a_checkpoint_has_no_model_yet(start: Start, tmp_path: Path) -> None:
    result = load_run(start("fedavg").folder)
    with (
        RunFolder.create(tmp_path / "new", result.config.resolved(), {"python": "3"}),
        pytest.raises(UserError) as error,
    ):
        personal(tmp_path / "new", 0)
    assert "has no checkpoint yet" in error.value.message


def test_without_the_extra_the_message_says_what_to_install(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UserError) as error:
        export_model(start("fedavg").folder, 0, "onnx", tmp_path / "m.onnx")
    assert "onnx" in error.value.message and "fedblocks[export]" in error.value.fix


def test_predictions_of_a_file_go_to_a_file(
    start: Start, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    actual = personal(start("pfedmb"), CLIENT)
    x = actual.examples(9).x
    np.savez(tmp_path / "x.npz", x=x.numpy())
    (tmp_path / "x.csv").write_text(
        "a,b,c,d,e,f\n" + "\n".join(",".join(map(repr, row)) for row in x.tolist())
    )
    model = export_model(start("pfedmb").folder, CLIENT, "safetensors", tmp_path / "m.safetensors")
    wanted = actual.predict(x).argmax(-1).tolist()
    for inputs in ("x.npz", "x.csv"):
        words = [
            "predict",
            str(model),
            "--input",
            str(tmp_path / inputs),
            "--json",
            "--output",
            str(tmp_path / "o.npz"),
            "--force",
        ]
        with pytest.raises(SystemExit) as ended:
            main(words)
        assert ended.value.code == 0 and json.loads(capsys.readouterr().out)["labels"] == wanted
        with np.load(tmp_path / "o.npz") as written:
            assert written["label"].tolist() == wanted
            assert written["probability"].sum(-1) == pytest.approx(1.0, abs=1e-5)


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("x.csv", "1,2,3\n4,5,6", "holds 2 x 3; the model takes"),
        ("x.csv", "1,2,3,4,5,6\n1,2", "line 2 has 2 values, earlier ones have 6"),
        ("x.csv", "1,2,3,4,5,6\n1,2,3,4,5,many", 'line 2: "many" is not a number'),
        ("x.csv", "1,2,3,4,5,nan", "NaN or infinite"),
        ("x.csv", "", "has no rows"),
        ("x.txt", "1", "inputs come as .npz, .csv or .parquet"),
        ("x.npz", "not an archive", "cannot be read as npz"),
    ],
)
def test_inputs_that_do_not_fit_are_refused_with_a_reason(
    name: str, content: str, said: str, start: Start, tmp_path: Path
) -> None:
    from fedblocks.export.predict import predict

    model = export_model(start("fedavg").folder, 0, "safetensors", tmp_path / "m.safetensors")
    (tmp_path / name).write_text(content)
    with pytest.raises(UserError) as error:
        predict(model, tmp_path / name)
    assert said in error.value.message


def test_an_array_is_taken_if_it_is_called_x_or_nobody_named_it(
    start: Start, tmp_path: Path
) -> None:
    from fedblocks.export.predict import predict

    model = export_model(start("fedavg").folder, 0, "safetensors", tmp_path / "m.safetensors")
    x = personal(start("fedavg"), 0).examples(3).x.numpy()
    np.savez(tmp_path / "plain.npz", x)
    assert len(predict(model, tmp_path / "plain.npz").labels) == 3
    np.savez(tmp_path / "other.npz", z=x)
    with pytest.raises(UserError, match='has no array "x" but z'):
        predict(model, tmp_path / "other.npz")


@pytest.mark.parametrize("name", ["m.safetensors", "m.pt2", "m.onnx", "m.txt", "missing.onnx"])
def test_foreign_files_are_no_models(name: str, tmp_path: Path) -> None:
    if name != "missing.onnx":
        (tmp_path / name).write_bytes(b"hello" * 100)
    with pytest.raises(UserError):
        read(tmp_path / name, trust=True)


def test_a_program_of_a_stranger_is_read_only_if_one_says_so(start: Start, tmp_path: Path) -> None:
    path = export_model(start("fedavg").folder, 0, "pt2", tmp_path / "m.pt2")
    with pytest.raises(UserError, match="can run code") as caught:
        read(path)
    assert "--trust" in caught.value.fix
    assert read(path, trust=True).card.method == "fedavg"


def test_a_file_is_replaced_only_if_one_says_so(start: Start, tmp_path: Path) -> None:
    folder, path = start("fedavg").folder, tmp_path / "m.safetensors"
    path.write_text("mine")
    with pytest.raises(UserError, match=r"m\.safetensors exists already") as caught:
        export_model(folder, 0, "safetensors", path)
    assert "--force" in caught.value.fix and path.read_text() == "mine"
    assert read(export_model(folder, 0, "safetensors", path, force=True)).card.client == 0
    path.unlink()
    with pytest.raises(UserError, match=r"m\.safetensors\.md exists already"):
        export_model(folder, 0, "safetensors", path)


def test_a_run_is_never_written_over_by_its_export(start: Start) -> None:
    folder = start("fedavg").folder
    (part,) = sorted(folder.glob("checkpoints/round-*/shared.safetensors"))[:1]
    before = part.read_bytes()
    with pytest.raises(UserError, match="belongs to what is read"):
        export_model(folder, 0, "safetensors", part, force=True)
    assert part.read_bytes() == before


@pytest.mark.parametrize("harm", ["m.safetensors", "x.npz", "other.npz"])
def test_predictions_never_replace_what_they_are_made_of(
    start: Start, tmp_path: Path, harm: str, capsys: pytest.CaptureFixture[str]
) -> None:
    x = personal(start("fedavg"), 0).examples(3).x
    model = export_model(start("fedavg").folder, 0, "safetensors", tmp_path / "m.safetensors")
    for name in ("x.npz", "other.npz"):
        np.savez(tmp_path / name, x=x.numpy())
    before = (tmp_path / harm).read_bytes()
    words = ["predict", str(model), "--input", str(tmp_path / "x.npz")]
    force = [] if harm == "other.npz" else ["--force"]
    with pytest.raises(SystemExit) as ended:
        main([*words, "--output", str(tmp_path / harm), *force])
    said = "exists already" if harm == "other.npz" else "belongs to what is read"
    assert ended.value.code == 2 and said in capsys.readouterr().err
    assert (tmp_path / harm).read_bytes() == before


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("net", {}),
        ("net", {"name": 3}),
        ("net", {"name": "mlp", "hidden": [7]}),
        ("net", {"name": "mlp", "hidden": "wide"}),
        ("input_shape", [-1]),
        ("input_shape", [2**40]),
        ("input_shape", [7]),
        ("input_type", "load"),
        ("classes", 10**15),
        ("classes", 9),
        ("kind", "method"),
        ("method", "fedmn"),
    ],
)
def test_an_altered_card_is_refused_with_a_reason(
    start: Start, tmp_path: Path, field: str, value: Any
) -> None:
    path = export_model(start("fedavg").folder, 0, "safetensors", tmp_path / "m.safetensors")
    card = json.loads(read(path).card.model_dump_json()) | {field: value}
    if field == "method":
        card |= {"kind": "method"}
    tensors = safetensors.torch.load_file(path)
    safetensors.torch.save_file(tensors, path, {"fedblocks": json.dumps(card)})
    with pytest.raises(UserError):
        read(path)


def test_tensors_of_strangers_are_no_models(tmp_path: Path) -> None:
    safetensors.torch.save_file({"a": torch.zeros(1)}, tmp_path / "m.safetensors")
    with pytest.raises(UserError, match="was not made by"):
        read(tmp_path / "m.safetensors")
    safetensors.torch.save_file(
        {"a": torch.zeros(1)}, tmp_path / "m.safetensors", {"fedblocks": "{}"}
    )
    with pytest.raises(UserError, match="has a card that cannot be read"):
        read(tmp_path / "m.safetensors")


@pytest.mark.parametrize("method", ["fedper", "flow_v2"])
@pytest.mark.parametrize("hidden", [[10**12], [3] * 20_000], ids=["wide", "deep"])
def test_a_card_that_promises_a_huge_net_is_refused_before_anything_is_made(
    start: Start, tmp_path: Path, method: str, hidden: list[int]
) -> None:
    """The net would take terabytes, or minutes."""
    path = export_model(start(method).folder, CLIENT, "safetensors", tmp_path / "m.safetensors")
    with safetensors.safe_open(path, framework="pt") as file:
        card = json.loads(file.metadata()["fedblocks"])
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    card["net"]["hidden"] = hidden
    safetensors.torch.save_file(tensors, path, {"fedblocks": json.dumps(card)})
    began = time.process_time()
    with pytest.raises(UserError, match=r"do not fit the net of its card|characters"):
        read(path)
    assert time.process_time() - began < 2


def test_a_client_is_chosen_by_number_or_name(start: Start) -> None:
    names = ["truck", "2", "north/7", "12"]
    assert [client_number(c, names) for c in (0, "truck", "2", 2, "north/7")] == [0, 0, 1, 2, 2]
    with pytest.raises(UserError, match='there is no client "ship" among 4 clients') as error:
        client_number("ship", names)
    assert 'a name such as "truck"' in error.value.fix
    result = start("fedavg")
    name = personal(result, CLIENT).data.names[CLIENT]
    assert personal(result, name).client == CLIENT


def test_the_card_names_each_file_of_code_once_and_how_to_use_it(
    start: Start, tmp_path: Path
) -> None:
    path = export_model(start("fedavg").folder, CLIENT, out=tmp_path / "m.safetensors")
    twice = [{"defines": "net", "file": "my.py"}, {"defines": "data", "file": "my.py"}]
    card = read(path).card.model_copy(update={"code": twice, "client_name": str(CLIENT)})
    text = card.markdown(0.0)
    assert "    fedblocks predict FILE --input INPUTS.npz --code my.py\n" in text
    assert "| client | 1 |" in text
    assert code_options(twice) == ["--code", "my.py"]


def test_the_name_of_a_client_is_text_in_every_line_of_its_card(
    start: Start, tmp_path: Path
) -> None:
    path = export_model(start("fedavg").folder, CLIENT, out=tmp_path / "m.safetensors")
    name = "<script>alert(1)</script>\n# Another | heading"
    text = read(path).card.model_copy(update={"client_name": name}).markdown(0.0)
    people = text.partition("## All of it as JSON")[0]
    assert "<script>" not in people and "# Another" not in people.splitlines()
    assert people.startswith(f"# Personal model of client {CLIENT} (&lt;script>")


def test_the_model_of_an_unfinished_run_says_its_round(
    start: Start, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = start("fedavg").folder
    for rounds, said in ((2, False), (5, True)):
        text = (folder / "config.toml").read_text()
        (folder / "config.toml").write_text(text.replace("rounds = 2", f"rounds = {rounds}", 1))
        with pytest.raises(SystemExit):
            main(
                [
                    "export",
                    str(folder),
                    "--client",
                    "1",
                    "--force",
                    "--out",
                    str(tmp_path / "m.safetensors"),
                ]
            )
        shown = capsys.readouterr().out
        assert ("the run is not finished: the model is that of round 2 of 5" in shown) is said


def test_a_model_of_an_older_checkpoint_says_so(
    start: Start, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "run"
    shutil.copytree(start("fedavg", batch_size=3).folder, folder)
    (folder / "checkpoints" / "round-000002" / "shared.json").write_text("[]")
    model = str(tmp_path / "m.safetensors")
    with pytest.raises(SystemExit) as ended:
        main(["export", str(folder), "--client", "1", "--out", model])
    shown = capsys.readouterr()
    assert ended.value.code == 0 and "not finished" not in shown.out
    assert shown.err.startswith("warning: passed over a checkpoint: round-000002: shared.json has")
    assert shown.err.endswith("; these are the models of round 1\n")
    with pytest.warns(RunWarning, match="these are the models of round 1"):
        assert load_run(folder).state().round == 1


def test_a_personal_model_is_shown_in_a_line(start: Start) -> None:
    shown = repr(personal(start("fedper"), 1))
    assert shown.startswith('Personal(client 1 "client-1", FedPer after round ')
    assert "blocks body, head" in shown and "tensor" not in shown and "\n" not in shown
