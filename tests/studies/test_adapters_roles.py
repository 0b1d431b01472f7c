"""The study of adapters for the roles of plays, with plays that are made here."""

from __future__ import annotations

import json
import lzma
import random
from pathlib import Path

import numpy as np
import pytest
import roles.prepare
import torch
from adapters_roles import main
from roles.cells import BY_SPLIT, TINY, RoleStudy
from roles.prepare import LETTERS, SIZE, STEPS, Material, divide, make_net, read_roles

PAIRS = [(split, name) for split, names in BY_SPLIT.items() for name in names]


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.set_num_threads(1)
    monkeypatch.setattr(roles.prepare.pretrain, "__defaults__", (1,))


@pytest.fixture
def plays(tmp_path: Path) -> Path:
    """27 plays with a large and a small role each; all that a role says has its own letter."""
    draw = random.Random(0)
    users = [f"play{play:02}/{role}" for play in range(27) for role in ("LONG", "SHORT")]
    length = {"LONG": SIZE * STEPS + 50, "SHORT": 300}
    say = lambda user, letter: "".join(
        draw.choice([letter, " "]) for _ in range(length[user.split("/")[1]])
    )
    speeches = [[say(user, LETTERS[2 + number // 2])] for number, user in enumerate(users)]
    path = tmp_path / "plays.json.xz"
    with lzma.open(path, "wt") as file:
        json.dump({"users": users, "speeches": speeches}, file)
    return path


@pytest.fixture
def folder(plays: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(roles.prepare, "PLAYS", 20)
    main(["--data", str(plays.parent / "data"), "--prepare", str(plays)])
    return plays.parent / "data"


def study(folder: Path) -> RoleStudy:
    return RoleStudy(TINY, torch.device("cpu"), Material.read(folder))


def test_no_client_is_a_role_of_a_play_that_made_the_base(folder: Path, plays: Path) -> None:
    seen, others = divide(read_roles(plays))
    assert {role.split("/")[0] for role in seen} == {f"play{n:02}" for n in range(20)}
    assert not {r.split("/")[0] for r in seen} & {r.split("/")[0] for r in others}
    material = Material.read(folder)
    assert material.roles == [f"play{n:02}/LONG" for n in range(20, 27)]  # none of the short ones
    assert material.characters.shape == (7, SIZE * STEPS + 1)


def test_a_role_trains_on_its_first_windows_and_is_tested_on_its_last(folder: Path) -> None:
    work = study(folder)
    data, windows = work.federation("roles", 0), work.windows("roles", 0)
    sizes = [len(data.parts[name][0]) for name in ("train", "validation", "test")]
    assert sizes == [6, 2, 2]
    assert torch.equal(data.x[data.train[1]], windows[1, :6, :-1])
    assert torch.equal(data.y[data.test[1]], windows[1, 8:, 1:])
    assert torch.equal(windows[0, 0, -1], windows[0, 1, 0])  # they follow each other
    letters = [set(np.unique(windows[k].numpy())) - {1} for k in range(5)]
    assert all(len(own) == 1 for own in letters) and len(set(map(tuple, letters))) == 5


def test_in_the_split_iid_a_client_has_windows_of_several_roles(folder: Path) -> None:
    windows = study(folder).windows("iid", 0)
    assert all(len(np.unique(own.numpy())) > 2 for own in windows)
    assert sorted(windows.flatten(0, 1).tolist()) == sorted(
        study(folder).windows("roles", 0).flatten(0, 1).tolist()
    )


def test_every_seed_draws_other_roles(folder: Path) -> None:
    hashes = {study(folder).partition_hash("roles", seed) for seed in (0, 1, 0)}
    assert len(hashes) == 2


def test_every_cell_starts_from_the_stored_base_and_trains_adapters_alone(folder: Path) -> None:
    work = study(folder)
    net = work.net(8)
    assert net.full_head is None and set(net.base) == set(make_net().names)
    for name, value in work.material.base.items():
        assert torch.equal(net.base[name], value)


@pytest.mark.soak
def test_all_methods_run_and_the_base_is_scored_without_training(folder: Path) -> None:
    out = folder.parent / "out.json"
    main(["--data", str(folder), "--tiny", "--device", "cpu", "--out", str(out)])
    stored = json.loads(out.read_text())["cells"]
    assert {(cell["split"], cell["method"]) for cell in stored.values()} == set(PAIRS)
    assert stored["roles/base/0/0"]["bytes"] == {"down": 0, "up": 0}


def test_only_cells_that_match_are_run(folder: Path) -> None:
    out = folder.parent / "out.json"
    main(["--data", str(folder), "--tiny", "--cells", "roles/f*", "--out", str(out)])
    names = [key.split("/")[1] for key in json.loads(out.read_text())["cells"]]
    assert names == ["fedavg_lora", "fedsa_lora", "ffa_lora"]
