"""What reads bytes of strangers: from a network, from a folder or a file that somebody sent."""

from __future__ import annotations

import io
import json
import random
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import tomli_w
from PIL import Image

from fedblocks.config.model import Config
from fedblocks.config.presets import read_config
from fedblocks.data.federation import Federation
from fedblocks.data.sets.own import csv_table
from fedblocks.data.sets.pixels import picture
from fedblocks.data.storage import read_arrays
from fedblocks.export.card import Card
from fedblocks.export.formats import read as read_model
from fedblocks.export.models import export_model
from fedblocks.export.predict import read_inputs
from fedblocks.reports.html.gather import gather
from fedblocks.reports.html.page import Content, embed
from fedblocks.runs.result import load_run
from fedblocks.runs.run import run
from fedblocks.runs.storage.checkpoint import load_round
from fedblocks.runs.storage.folder import RunFolder
from fedblocks.runs.storage.manifest import MANIFEST, seal
from fedblocks.runs.storage.seals import SEALED, seal_rounds, seal_whole
from fedblocks.runs.storage.states import state_of
from fedblocks.runs.storage.store import RunStore

from .mutations import mutate

FORGED = (*SEALED, "meta")  # tables of a record
NOT_STORED = (sqlite3.Error, OverflowError, UnicodeEncodeError)
TABLE = b"user,height,width,label\nann,1.5,2,yes\nbob,2.5,3,no\nann,1,1,yes\ncid,7,8.25,no\n"


@dataclass(frozen=True, eq=False)
class Decoder:
    """A reader, files that it can read, and how many changed ones it is shown in a quick test."""

    samples: tuple[bytes, ...]
    read: Callable[[bytes], object]
    inputs: int

    def changed(self, rng: random.Random) -> bytes:
        return mutate(rng.choice(self.samples), rng)


def small_run(folder: Path) -> Path:
    """A finished run of two rounds, made here."""
    config = {
        "rounds": 2,
        "data": {"name": "digits", "clients": 3},
        "net": {"name": "mlp", "hidden": [3]},
        "method": {"name": "fedper"},
        "engine": "sequential",
    }
    run(Config.of(config), folder)
    return folder


def decoders(folder: Path) -> dict[str, Decoder]:
    """All of them; they write what they read below the folder."""
    whole = small_run(folder / "run")
    model = folder / "model.safetensors"
    export_model(whole, 0, "safetensors", model)
    card = read_model(model).card
    return {
        **texts(folder, whole, card),
        **arrays(folder),
        "exported model": Decoder(
            (model.read_bytes(),), of_file(folder / "m.safetensors", read_model), 2_000
        ),
        **record(folder, whole),
        **checkpoint(folder, whole),
    }


def of_file(path: Path, read: Callable[[Path], object]) -> Callable[[bytes], object]:
    """A reader of bytes from one that reads a file."""

    def decode(content: bytes) -> object:
        path.write_bytes(content)
        return read(path)

    return decode


def texts(folder: Path, whole: Path, card: Card) -> dict[str, Decoder]:
    config = (whole / "config.toml").read_bytes()
    short = tomli_w.dumps(
        {
            "rounds": 1,
            "data": {"name": "digits", "clients": 4},
            "net": {"name": "mlp"},
            "method": {"name": "pfedmb"},
        }
    )
    return {
        "configuration": Decoder(
            (config, short.encode()),
            of_file(folder / "c.toml", lambda path: read_config(str(path))),
            2_000,
        ),
        "table of one's own": Decoder(
            (TABLE,), of_file(folder / "t.csv", lambda path: csv_table(path=str(path))), 3_000
        ),
        "inputs to predict, CSV": Decoder(
            (b"a,b\n1,2\n3,4.5\n",),
            of_file(folder / "i.csv", lambda path: read_inputs(path, two_inputs(card))),
            3_000,
        ),
        "model card": Decoder((card.model_dump_json().encode(),), read_card_text, 20_000),
    }


def read_card_text(content: bytes) -> Card:
    return Card.of(content.decode("utf-8", "replace"), "m.safetensors")


def two_inputs(card: Card) -> Card:
    return card.model_copy(update={"input_shape": [2]})


def arrays(folder: Path) -> dict[str, Decoder]:
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(12, 2)).astype(np.float32), np.arange(12) % 3
    users = np.repeat(["ann", "bob", "cid"], 4)
    Federation.from_users(x, y, users).save(folder / "federation.npz")
    np.savez(folder / "a.npz", x=x, y=y, users=users)
    np.savez_compressed(folder / "b.npz", x=np.zeros((64, 64), np.float32))
    plain = tuple((folder / f"{name}.npz").read_bytes() for name in "ab")
    saved = (folder / "federation.npz").read_bytes()
    return {
        "image": Decoder(images(), lambda content: picture(content, "an image"), 3_000),
        "npz": Decoder(plain, of_file(folder / "n.npz", read_arrays), 3_000),
        "saved federation": Decoder(
            (saved,), of_file(folder / "f.npz", lambda path: Federation.load(path)), 2_000
        ),
    }


def images() -> tuple[bytes, ...]:
    """A small picture in every format that is read."""
    files = []
    for kind in ("PNG", "JPEG", "GIF", "BMP", "WEBP", "TIFF", "PPM"):
        file = io.BytesIO()
        Image.new("RGB", (8, 8), (10, 20, 30)).save(file, kind)
        files.append(file.getvalue())
    return tuple(files)


def record(folder: Path, whole: Path) -> dict[str, Decoder]:
    """The database of a run, alone and as part of its folder."""
    content = (whole / "run.sqlite").read_bytes()
    copies = [folder / "copy" / name for name in ("record", "environment")]
    for copy in copies:
        shutil.copytree(whole, copy)

    def verify(path: Path) -> None:
        with closing(RunStore(path)) as store:
            store.verify()

    def summarise(path: Path) -> object:
        return str(load_run(path.parent).summary())

    def environment(path: Path) -> object:
        with RunFolder.open(path.parent) as folder:
            return folder.environment

    env = (whole / "env.json").read_bytes()
    return {
        **forged_record(folder / "forged record", whole),
        "record": Decoder((content,), of_file(folder / "r.sqlite", verify), 1_000),
        "record in its folder": Decoder(
            (content,), of_file(copies[0] / "run.sqlite", summarise), 500
        ),
        "environment": Decoder((env,), of_file(copies[1] / "env.json", environment), 500),
    }


def forged_record(copy: Path, whole: Path) -> dict[str, Decoder]:
    """Rows that somebody wrote who knows how to seal them, as the report of a run reads them."""
    shutil.copytree(whole, copy)
    with closing(sqlite3.connect(whole / "run.sqlite")) as db:
        rows = {table: db.execute(f"SELECT * FROM {table}").fetchall() for table in FORGED}

    def decode(content: bytes) -> object:
        try:
            tables = {name: [*map(tuple, rows)] for name, rows in json.loads(content).items()}
            write_record(copy / "run.sqlite", tables)
        except (ValueError, TypeError, AttributeError, RecursionError, *NOT_STORED):
            return None  # what no record can hold; other changed files show how those are read
        return embed(Content.of(gather(copy)).script_data()), str(load_run(copy).summary())

    return {"forged record": Decoder((json.dumps(rows).encode(),), decode, 500)}


def write_record(path: Path, tables: dict[str, list[tuple[Any, ...]]]) -> None:
    """A record with these rows and the right checksums."""
    RunStore.create(path).close()
    with closing(sqlite3.connect(path)) as db, db:
        for table in FORGED:
            db.execute(f"DELETE FROM {table}")
            for row in tables.get(table, []):
                db.execute(f"INSERT INTO {table} VALUES ({', '.join('?' for _ in row)})", row)
        seal_rounds(db, 0)
        seal_whole(db)


def checkpoint(folder: Path, whole: Path) -> dict[str, Decoder]:
    """Files of a checkpoint: damaged, and changed by somebody who knows how to seal them."""
    newest = max((whole / "checkpoints").glob("round-*"))
    copy = folder / "damaged" / newest.name
    forged = folder / "forged" / newest.name
    for place in (copy, forged):
        shutil.copytree(newest, place)
    manifest = json.loads((newest / MANIFEST).read_bytes())

    def forge(name: str) -> Callable[[bytes], object]:
        good = (newest / name).read_bytes()

        def decode(content: bytes) -> object:
            (forged / name).write_bytes(content)
            entry = {"size": len(content), "sha256": sha256(content).hexdigest()}
            own = {key: value for key, value in manifest.items() if key != "seal"}
            (forged / MANIFEST).write_bytes(seal({**own, "files": {**own["files"], name: entry}}))
            try:
                return state_of(load_round(forged), "cpu")
            finally:
                (forged / name).write_bytes(good)

        return decode

    def forge_manifest(content: bytes) -> object:
        try:
            changed = json.loads(content)
        except (ValueError, RecursionError):
            changed = None
        if not isinstance(changed, dict):
            return None  # not JSON any more: of_file below shows such ones
        (forged / MANIFEST).write_bytes(seal({k: v for k, v in changed.items() if k != "seal"}))
        return state_of(load_round(forged), "cpu")

    def sample(name: str) -> tuple[bytes]:
        return ((newest / name).read_bytes(),)

    return {
        "damaged checkpoint": Decoder(
            sample(MANIFEST), of_file(copy / MANIFEST, lambda path: load_round(path.parent)), 2_000
        ),
        "forged tensors": Decoder(sample("shared.safetensors"), forge("shared.safetensors"), 1_000),
        "forged structure": Decoder(sample("shared.json"), forge("shared.json"), 1_000),
        "forged manifest": Decoder(sample(MANIFEST), forge_manifest, 1_000),
    }
