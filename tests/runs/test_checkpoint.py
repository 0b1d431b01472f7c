"""Checkpoints come back exactly, and survive kills, full disks and damaged files."""

import errno
import itertools
import json
import math
import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import given

from fedblocks.core.errors import CheckpointError, RunFolderError
from fedblocks.runs.storage import checkpoint
from fedblocks.runs.storage.checkpoint import load, load_round, save
from fedblocks.runs.storage.trees import pack, unpack

REAL = [torch.float32, torch.float64, torch.bfloat16, torch.float16]
DTYPES = [*REAL, torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool]


def same(a, b):
    """Equal down to the bit, the type and the order of keys."""
    if isinstance(a, torch.Tensor):
        bits = [t.detach().contiguous().flatten().view(torch.uint8).tolist() for t in (a, b)]
        return a.dtype == b.dtype and a.shape == b.shape and bits[0] == bits[1]
    if isinstance(a, dict):
        return isinstance(b, dict) and list(a) == list(b) and all(same(a[k], b[k]) for k in a)
    if isinstance(a, list):
        return isinstance(b, list) and len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, float) and math.isnan(a):
        return isinstance(b, float) and math.isnan(b)
    return type(a) is type(b) and a == b and str(a) == str(b)  # str: -0.0 is not 0.0


@st.composite
def tensors(draw):
    shape = draw(st.lists(st.integers(0, 3), max_size=3))
    seed = draw(st.integers(0, 9))
    return (
        torch.randn(shape, generator=torch.Generator().manual_seed(seed))
        .mul(100)
        .to(draw(st.sampled_from(DTYPES)))
    )


leaves = st.none() | st.booleans() | st.integers() | st.floats() | st.text() | tensors()
awkward = ["", "/", "~", "~1", "~0", "a/b", "conv1.weight", "__metadata__", "list", "tensor", "0"]
keys = st.text() | st.sampled_from(awkward)
trees = st.dictionaries(
    keys,
    st.recursive(
        leaves,
        lambda n: st.lists(n, max_size=3) | st.dictionaries(keys, n, max_size=3),
        max_leaves=8,
    ),
)


def state(round, clients=200):
    """A state that can be recognised: client c changed last in the newest round r <=
    round with r % 50 == c % 50.
    """
    shared = {"body/gen2": {"conv1.weight": torch.full((4, 3), float(round))}, "round": round}
    last = {c: round - (round - c) % 50 for c in range(clients)}
    return shared, {
        c: {"alpha": torch.full((5,), float(last[c])), "since": last[c]} for c in range(clients)
    }


def store(root, round, **options):
    """Save the state of a round, naming the clients that changed in it."""
    changed = [c for c in range(200) if c % 50 == round % 50]
    return save(root, round, *state(round), changed=changed, **options)


def is_state(loaded):
    shared, clients = state(loaded.round)
    return (
        same(shared, loaded.shared)
        and same(clients, loaded.clients)
        and list(clients) == list(loaded.clients)
    )


def all_files(folder):
    return sorted(path for path in folder.rglob("*") if path.is_file())


@given(trees)
def test_a_tree_comes_back_exactly(tree):
    assert same(tree, unpack(*pack(tree)))


@given(trees, st.dictionaries(st.integers(0, 300), trees, max_size=4))
def test_a_checkpoint_comes_back_exactly(shared, clients):
    with tempfile.TemporaryDirectory() as folder:
        save(Path(folder), 3, shared, clients, changed=None)
        loaded = load(Path(folder))
    assert loaded.round == 3 and loaded.skipped == []
    assert same(shared, loaded.shared)
    assert list(loaded.clients) == sorted(clients) and all(
        same(clients[c], loaded.clients[c]) for c in clients
    )


def test_names_that_look_alike_stay_apart():
    names = ["a/b", "a~1b", "a~01b", "a~b", "a~0b", "/a/b"]
    tree = {"a": {"b": torch.tensor(-1)}, **{name: torch.tensor(i) for i, name in enumerate(names)}}
    assert same(tree, unpack(*pack(tree)))


def test_views_tied_weights_and_parameters_are_stored_by_value():
    base = torch.arange(12.0).reshape(3, 4)
    tree = {
        "t": base.t(),
        "row": base[1],
        "tied": base,
        "again": base,
        "wide": torch.ones(1).expand(5),
        "parameter": torch.nn.Parameter(base[:, 1]),
    }
    back = unpack(*pack(tree))
    assert all(torch.equal(tree[name], back[name]) for name in tree)
    assert (
        back["tied"].data_ptr() != back["again"].data_ptr() and not back["parameter"].requires_grad
    )


def test_loaded_tensors_are_aligned_like_those_of_torch():
    back = unpack(*pack({str(n): torch.ones(n) for n in range(1, 40)}))
    assert all(tensor.data_ptr() % 64 == 0 for tensor in back.values())


@pytest.mark.parametrize(
    "value", [(1, 2), np.float64(1), np.zeros(2), {1: "a"}, torch.zeros(2, dtype=torch.complex64)]
)
def test_what_would_not_come_back_exactly_is_refused_with_its_path(value, tmp_path):
    with pytest.raises(TypeError, match="/method/memory"):
        save(tmp_path, 1, {"method": {"memory": value}}, {}, changed=None)
    assert all_files(tmp_path) == []


def test_the_same_state_gives_the_same_bytes(tmp_path):
    first, second = (save(tmp_path / name, 7, *state(7), changed=None) for name in "ab")
    assert [f.read_bytes() for f in all_files(first)] == [f.read_bytes() for f in all_files(second)]


def test_unchanged_shards_are_linked_and_neighbours_share_no_file(tmp_path):
    folders = []
    for round in range(4):  # only client 0, of the first of the four shards, ever changes
        clients = {
            c: {"alpha": torch.full((3,), float(round if c == 0 else 0))} for c in range(200)
        }
        folders.append(save(tmp_path, round, {}, clients, changed=[0], keep=9))
        assert same(clients, load(tmp_path).clients)
    inodes = [
        {f.relative_to(folder): f.stat().st_ino for f in all_files(folder)} for folder in folders
    ]
    linked = [{str(name) for name in a if a[name] == b[name]} for a, b in zip(inodes, inodes[2:])]
    shards = {f"clients/00000{n}.{kind}" for n in (1, 2, 3) for kind in ("json", "safetensors")}
    assert linked == [shards, shards]
    assert all(not set(a.values()) & set(b.values()) for a, b in itertools.pairwise(inodes))


def test_a_client_that_appears_is_stored_even_if_not_named_as_changed(tmp_path):
    for round in range(4):
        clients = {c: {"x": 1.5} for c in range(2 if round < 3 else 3)}
        save(tmp_path, round, {}, clients, changed=[])
    assert list(load(tmp_path).clients) == [0, 1, 2]


def test_shards_are_written_where_links_are_not_possible(tmp_path, monkeypatch):
    def refuse(*_):
        raise OSError(errno.EPERM, "no links here")

    monkeypatch.setattr(os, "link", refuse)
    for round in range(4):
        store(tmp_path, round)
    assert is_state(load(tmp_path)) and load(tmp_path).round == 3


def test_the_last_two_and_the_best_are_kept(tmp_path):
    for round in range(1, 7):
        store(tmp_path, round, best_round=2)
    assert sorted(os.listdir(tmp_path)) == ["round-000002", "round-000005", "round-000006"]
    assert is_state(load_round(tmp_path / "round-000002"))


def test_going_back_to_an_earlier_round_drops_the_later_ones(tmp_path):
    for round in (1, 2, 3, 4):
        store(tmp_path, round, keep=4)
    save(tmp_path, 2, *state(2), changed=None, keep=4)
    assert sorted(os.listdir(tmp_path)) == ["round-000001", "round-000002"]


def test_a_round_that_is_redone_replaces_its_checkpoint(tmp_path):
    save(tmp_path, 1, {"x": 1}, {}, changed=None)
    save(tmp_path, 1, {"x": 2}, {}, changed=None)
    assert load(tmp_path).shared == {"x": 2} and os.listdir(tmp_path) == ["round-000001"]


def test_a_kill_while_a_round_replaces_itself_loses_nothing(tmp_path):
    folder = save(tmp_path, 1, {"x": 1}, {}, changed=None)
    os.rename(folder, tmp_path / ".old-round-000001")  # the state between the two renames
    assert load(tmp_path).shared == {"x": 1}
    save(tmp_path, 1, {"x": 2}, {}, changed=None)
    assert load(tmp_path).shared == {"x": 2} and os.listdir(tmp_path) == ["round-000001"]


@pytest.fixture(scope="module")
def five_rounds(tmp_path_factory):
    root = tmp_path_factory.mktemp("rounds")
    for round in range(1, 6):
        store(root, round, keep=3)
    # shared with round 3
    assert any(file.stat().st_nlink > 1 for file in all_files(root / "round-000005"))
    return root


def damaged(five_rounds, tmp_path):
    """A copy in which links are links, as in the original."""
    subprocess.run(["cp", "-a", five_rounds, tmp_path / "copy"], check=True)
    return tmp_path / "copy"


def test_any_flipped_byte_is_found_and_the_round_before_is_loaded(
    five_rounds, tmp_path, record_property
):
    record_property("figure", "200 of 200 flipped bytes")
    root = damaged(five_rounds, tmp_path)
    random = np.random.Generator(np.random.PCG64(0))
    files = all_files(root / "round-000005")
    for attempt in range(200):
        file = files[attempt % len(files)]
        content = bytearray(file.read_bytes())
        position = random.integers(len(content))
        content[position] ^= int(random.integers(1, 256))
        original = file.read_bytes()
        file.write_bytes(content)  # in place: linked checkpoints are hit too
        loaded = load(root)
        assert loaded.round == 4 and is_state(loaded), (file, position)
        assert file.name in loaded.skipped[0] and "round-000005" in loaded.skipped[0]
        file.write_bytes(original)
    assert load(root).round == 5


@pytest.mark.parametrize("damage", ["truncate", "empty", "remove", "grow"])
def test_truncated_and_missing_files_are_found(five_rounds, tmp_path, damage):
    root = damaged(five_rounds, tmp_path)
    for file in all_files(root / "round-000005"):
        content = file.read_bytes()
        new = {"truncate": content[:-1], "empty": b"", "grow": content + b" ", "remove": None}[
            damage
        ]
        file.unlink() if new is None else file.write_bytes(new)
        loaded = load(root)
        assert loaded.round == 4 and is_state(loaded) and file.name in loaded.skipped[0]
        file.write_bytes(content)


def test_saving_after_a_fallback_gives_whole_checkpoints_again(five_rounds, tmp_path):
    root = damaged(five_rounds, tmp_path)
    (root / "round-000005" / "manifest.json").write_text("[]")
    assert load(root).round == 4
    store(root, 5)
    store(root, 6)
    assert all(is_state(load_round(root / f"round-{n:06d}")) for n in (5, 6))


def test_no_whole_checkpoint_is_an_error_that_lists_what_is_wrong(tmp_path):
    with pytest.raises(CheckpointError, match="no usable checkpoint"):
        load(tmp_path / "nothing")
    folder = save(tmp_path, 1, {}, {}, changed=None)
    (folder / "shared.json").unlink()
    with pytest.raises(
        CheckpointError,
        match=r"round-000001: shared\.json cannot be read: No "
        r"such file",
    ):
        load(tmp_path)


def test_a_newer_major_format_is_refused_rather_than_skipped(tmp_path, monkeypatch):
    save(tmp_path, 1, {}, {}, changed=None)
    monkeypatch.setattr(checkpoint, "FORMAT", [3, 0])
    save(tmp_path, 2, {}, {}, changed=None)
    monkeypatch.undo()
    with pytest.raises(CheckpointError, match="format 3; this version reads up to 2"):
        load(tmp_path)
    monkeypatch.setattr(checkpoint, "FORMAT", [1, 7])
    save(tmp_path, 2, {}, {}, changed=None)
    monkeypatch.undo()
    assert load(tmp_path).round == 2


def test_a_renamed_checkpoint_is_not_taken_for_another_round(tmp_path):
    save(tmp_path, 1, {}, {}, changed=None).rename(tmp_path / "round-000009")
    with pytest.raises(CheckpointError, match="damaged"):
        load(tmp_path)


def test_a_full_disk_is_an_error_and_the_checkpoint_before_stays(tmp_path):
    store(tmp_path, 1)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    # a write beyond it fails, as on a full disk
    resource.setrlimit(resource.RLIMIT_FSIZE, (4000, hard))
    try:
        with pytest.raises(
            RunFolderError, match=f"cannot write checkpoint {tmp_path}/round-000002: File too large"
        ):
            store(tmp_path, 2)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert os.listdir(tmp_path) == ["round-000001"] and is_state(load(tmp_path))
    store(tmp_path, 2)
    assert load(tmp_path).round == 2


@pytest.mark.parametrize("call", ["mkdir", "rename", "fsync"])
def test_any_step_that_the_disk_refuses_leaves_the_checkpoint_before(tmp_path, monkeypatch, call):
    store(tmp_path, 1)

    def refuse(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, call, refuse)
    with pytest.raises(RunFolderError, match="No space left on device"):
        store(tmp_path, 2)
    monkeypatch.undo()
    assert os.listdir(tmp_path) == ["round-000001"] and is_state(load(tmp_path))


def test_leftovers_of_dead_processes_go_and_those_of_living_ones_stay(tmp_path):
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    for pid in (dead.pid, os.getppid(), os.getpid()):
        (tmp_path / f".tmp-{pid}-round-000001" / "clients").mkdir(parents=True)
    (tmp_path / "notes of mine").mkdir()
    save(tmp_path, 1, {}, {}, changed=None)
    assert sorted(os.listdir(tmp_path)) == [
        f".tmp-{os.getppid()}-round-000001",
        "notes of mine",
        "round-000001",
    ]


KILLED_AT_RANDOM = """
import json, os, signal, sys
from pathlib import Path
import numpy as np
sys.path.insert(0, sys.argv[2])
from test_checkpoint import is_state, load, store
root, random = Path(sys.argv[1]), np.random.Generator(np.random.PCG64(int(sys.argv[3])))
store(root, 0)
seen = []
for kill in range(40):
    start = load(root).round
    seconds = random.uniform(0.005, 0.05)  # of processor time: the machine may be busy
    child = os.fork()
    if child == 0:
        signal.signal(signal.SIGPROF, signal.SIG_DFL)  # it ends the process wherever it is
        signal.setitimer(signal.ITIMER_PROF, seconds)
        for round in range(start + 1, 10**6):
            store(root, round)
    os.waitpid(child, 0)
    loaded = load(root)
    drafts = [name for name in os.listdir(root) if name.startswith(".tmp")]
    seen.append([loaded.round, is_state(loaded), loaded.skipped, len(drafts)])
print(json.dumps(seen))
"""


def test_after_a_kill_at_any_instant_a_whole_round_is_loaded(tmp_path, record_property):
    record_property("figure", "40 of 40 kills")
    command = [sys.executable, "-c", KILLED_AT_RANDOM, tmp_path, Path(__file__).parent, "1"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stderr
    rounds, whole, skipped, drafts = zip(*json.loads(result.stdout))
    assert len(rounds) == 40 and all(whole) and list(rounds) == sorted(rounds) and rounds[-1] > 0
    assert not any(skipped)  # a kill never leaves a damaged checkpoint, only drafts
    assert sum(drafts) > 0  # the kills did hit saves
