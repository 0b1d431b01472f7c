"""`predict` takes the very files that were trained on, and gives labels back by their names."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import fedblocks as fb
from fedblocks.cli import main

from .test_data_sets import data_set, table


def mlp(inputs: int, classes: int) -> fb.Net:
    return fb.Net.of(lambda: nn.Sequential(nn.Flatten(), nn.Linear(inputs, classes)))


def exported(data: fb.Federation, tmp_path: Path, inputs: int) -> tuple[Path, fb.Method]:
    method = fb.FedAvg(mlp(inputs, data.classes), lr=0.1)
    run = fb.run(method, data, rounds=1, out=tmp_path / "run")
    out = tmp_path / "m.safetensors"
    return fb.export_model(run.folder, 0, method=method, data=data, out=out), method


def check(data: fb.Federation, source: Path, tmp_path: Path, inputs: int) -> Any:
    """The predictions are those of the personal model on the rows as they were trained on."""
    model, method = exported(data, tmp_path, inputs)
    predicted = fb.predict(model, source, method)
    wanted = fb.personal(tmp_path / "run", 0, method, data).predict(data.x)
    assert predicted.probabilities == pytest.approx(torch.softmax(wanted, -1).numpy(), abs=1e-6)
    return predicted


def test_a_table_with_labels_and_users_is_predicted_by_its_inputs(tmp_path: Path) -> None:
    path, rng = tmp_path / "t.csv", np.random.default_rng(0)
    lines = [
        f"{rng.normal():.4f},{('town', 'field')[k % 2]},t{k % 3},{rng.normal():.4f}"
        for k in range(30)
    ]
    # with the mark that spreadsheets leave at the beginning, and blanks in the line of names
    path.write_text("\n".join(["\ufeffspeed, road ,truck, load", *lines]), encoding="utf-8")
    data = fb.Federation.from_csv(path, "road", "truck")
    predicted = check(data, path, tmp_path, 2)
    assert set(predicted.class_labels()) <= {"town", "field"}


def test_a_parquet_file_with_labels_and_users_is_predicted(tmp_path: Path) -> None:
    path = table(tmp_path / "t.parquet")
    data = fb.Federation.from_parquet(path, "road", "truck", ["speed", "gear"])
    predicted = check(data, path, tmp_path, 2)
    assert set(predicted.class_labels()) <= {"town", "field"}
    with pytest.raises(fb.DataError, match='has no column "gear"'):
        fb.predict(tmp_path / "m.safetensors", without_gear(tmp_path), fb.FedAvg(mlp(2, 2), lr=0.1))


def without_gear(tmp_path: Path) -> Path:
    import pyarrow
    import pyarrow.parquet

    pyarrow.parquet.write_table(pyarrow.table({"speed": [1.0]}), tmp_path / "short.parquet")
    return tmp_path / "short.parquet"


def test_an_archive_is_predicted_by_the_array_that_was_trained_on(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (24, 1, 3, 3)).astype("uint8")
    arrays = {"images": images, "kind": np.arange(24) % 2, "who": np.arange(24) % 3}
    np.savez(tmp_path / "t.npz", **arrays)
    data = fb.Federation.from_npz(tmp_path / "t.npz", "images", "kind", "who")
    assert data.x.max() <= 1
    check(data, tmp_path / "t.npz", tmp_path, 9)


def test_an_archive_of_a_configuration_is_predicted_with_words_as_labels(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rng = np.random.default_rng(0)
    roads = np.array(["town", "field"])[np.arange(40) % 2]
    np.savez("t.npz", speeds=rng.normal(size=(40, 3)), road=roads, truck=np.arange(40) % 4)
    Path("t.toml").write_text(
        """
        rounds = 1
        [data]
        name = "npz"
        options = { path = "t.npz", x = "speeds", y = "road", user = "truck" }
        partition = { name = "by_user" }
        [net]
        name = "mlp"
        [method]
        name = "fedavg"
        """
    )
    for words in (
        ["run", "t.toml", "--out", "run"],
        ["export", "run", "--client", "1", "--out", "m.safetensors"],
        ["predict", "m.safetensors", "--input", "t.npz", "--output", "labels.csv"],
    ):
        with pytest.raises(SystemExit) as ended:
            main(words)
        assert ended.value.code == 0, capsys.readouterr().err
    lines = Path("labels.csv").read_text().splitlines()
    assert lines[0] == "label,probability of field,probability of town" and len(lines) == 41
    assert {line.split(",")[0] for line in lines[1:]} <= {"field", "town"}


def test_a_folder_of_images_is_predicted(tmp_path: Path) -> None:
    from PIL import Image

    rng = np.random.default_rng(0)
    for user in ("ann", "bob"):
        for kind in ("cat", "dog"):
            (tmp_path / "images" / user / kind).mkdir(parents=True)
            for k in range(3):
                pixels = rng.integers(0, 256, (4, 4, 3)).astype("uint8")
                Image.fromarray(pixels).save(tmp_path / "images" / user / kind / f"{k}.png")
    data = fb.Federation.from_folder(tmp_path / "images")
    predicted = check(data, tmp_path / "images", tmp_path, 48)
    assert set(predicted.class_labels()) <= {"cat", "dog"}


def test_a_folder_of_images_of_16_bits_is_predicted_as_it_was_trained_on(tmp_path: Path) -> None:
    from PIL import Image

    rng = np.random.default_rng(0)
    for user in ("ann", "bob"):
        for kind in ("cat", "dog"):
            (tmp_path / "images" / user / kind).mkdir(parents=True)
            for k in range(3):
                pixels = rng.integers(0, 65536, (4, 4)).astype("uint16")
                Image.fromarray(pixels).save(tmp_path / "images" / user / kind / f"{k}.png")
    data = fb.Federation.from_folder(tmp_path / "images")
    assert 0 <= data.x.min() < 0.1 and 0.9 < data.x.max() < 1  # not cut off at 255
    check(data, tmp_path / "images", tmp_path, 48)


def test_a_folder_of_images_is_refused_by_a_model_of_another_scale(tmp_path: Path) -> None:
    from PIL import Image

    x = np.random.default_rng(0).integers(0, 256, (24, 3, 4, 4)).astype("float32")
    data = fb.Federation.from_users(x, np.arange(24) % 2, np.arange(24) // 12)
    (tmp_path / "images").mkdir()
    Image.fromarray(np.zeros((4, 4), np.uint16)).save(tmp_path / "images" / "0.png")
    with pytest.raises(fb.DataError, match="become 0 to 1, and inputs of training were not"):
        check(data, tmp_path / "images", tmp_path, 48)


def test_a_saved_data_set_is_predicted_with_names_of_classes(tmp_path: Path) -> None:
    data_set().save_to_disk(tmp_path / "texts")
    data = fb.Federation.from_hf(tmp_path / "texts", "mood", "writer")

    class Mean(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words = nn.Embedding(30, 8)
            self.out = nn.Linear(8, 3)

        def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
            weights = attention_mask / attention_mask.sum(-1, keepdim=True)
            return self.out((self.words(input_ids) * weights[..., None]).sum(-2))

    method = fb.FedAvg(fb.Net.of(Mean, inputs=data.fields), lr=0.1)
    run = fb.run(method, data, rounds=1, out=tmp_path / "run")
    out = tmp_path / "m.safetensors"
    model = fb.export_model(run.folder, "w2", method=method, data=data, out=out)
    predicted = fb.predict(model, tmp_path / "texts", method)
    wanted = fb.personal(run.folder, "w2", method, data).predict(data.x)
    assert predicted.probabilities == pytest.approx(torch.softmax(wanted, -1).numpy(), abs=1e-6)
    assert set(predicted.class_labels()) <= {"calm", "glad", "sad"}


def test_fields_of_another_length_are_refused(tmp_path: Path) -> None:
    data_set().save_to_disk(tmp_path / "texts")
    data = fb.Federation.from_hf(tmp_path / "texts", "mood", "writer")

    class Sum(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.out = nn.Linear(16, 3)

        def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
            both = torch.cat([input_ids, attention_mask], -1)
            return self.out(both.to(self.out.weight.dtype) / 30)

    method = fb.FedAvg(fb.Net.of(Sum, inputs=data.fields), lr=0.1)
    run = fb.run(method, data, rounds=1, out=tmp_path / "run")
    out = tmp_path / "m.safetensors"
    model = fb.export_model(run.folder, 0, method=method, data=data, out=out)
    np.savez(tmp_path / "x.npz", input_ids=np.ones((2, 9)), attention_mask=np.ones((2, 7)))
    with pytest.raises(fb.DataError, match="the fields have shapes"):
        fb.predict(model, tmp_path / "x.npz", method)
