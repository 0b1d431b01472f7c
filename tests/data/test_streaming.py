"""Inputs larger than memory stay in their file: clients read the rows that they hold."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import fedblocks as fb
from fedblocks.data import streaming

CLIENTS, EACH = 12, 20
ENGINES = {
    "sequential": fb.Sequential(),
    "vectorised": fb.Vectorised(chunk=3),
    "processes": fb.Processes(2),
}


@pytest.fixture(scope="module", autouse=True)
def workers_end() -> Iterator[None]:
    yield
    ENGINES["processes"].close()


@pytest.fixture(autouse=True)
def own_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    torch.set_num_threads(1)


def pixels() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    x = rng.integers(0, 256, (CLIENTS * EACH, 1, 4, 4)).astype("uint8")
    order = rng.permutation(len(x))  # the rows of a client do not lie together
    return x, (x.sum((1, 2, 3)) > 16 * 127).astype(int), (order % CLIENTS)


def mapped(array: np.ndarray) -> np.ndarray:
    np.save("x.npy", array)
    loaded: np.ndarray = np.load("x.npy", mmap_mode="r")
    return loaded


def net() -> fb.Net:
    return fb.Net.of(
        lambda: nn.Sequential(nn.Flatten(), nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 2))
    )


METHODS = {
    "fedavg": lambda: fb.FedAvg(net(), lr=0.1, batch_size=4, epochs=2),
    "fedem": lambda: fb.FedEM(net(), lr=0.1, components=2),
    "fedfomo": lambda: fb.FedFomo(net(), lr=0.1),
    "fedmn": lambda: fb.FedMN(net(), lr=0.1),
}


def play(data: fb.Federation, method: fb.Method, engine: fb.Engine) -> tuple[fb.State, object]:
    experiment = fb.Experiment.of(method, data, seed=2, rounds=2)
    state = experiment.start()
    for cohort in ([0, 3, 4, 7, 9], [1, 3, 5]):
        state, report = fb.run_round(experiment, state, cohort, engine, score="test")
        assert not report.refusals
    return state, fb.evaluate(experiment, state, range(data.clients), engine)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", METHODS)
def test_training_from_a_file_is_that_from_memory_to_the_last_bit(name: str, engine: str) -> None:
    x, y, users = pixels()
    split = (0.6, 0.2, 0.2)
    inside = fb.Federation.from_users(x, y, users, split=split)
    outside = fb.Federation.from_users(mapped(x), y, users, split=split)
    assert outside.streamed and not inside.streamed
    state, scores = play(inside, METHODS[name](), ENGINES[engine])
    again, same = play(outside, METHODS[name](), ENGINES[engine])
    assert scores == same
    for block, tensors in state.server.items():
        assert all(torch.equal(again.server[block][k], v) for k, v in tensors.items())


def test_a_round_reads_the_rows_of_its_cohort_and_no_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    x, y, users = pixels()
    data = fb.Federation.from_users(mapped(x), y, users)
    experiment = fb.Experiment.of(METHODS["fedavg"](), data, seed=2)
    seen: list[np.ndarray] = []
    read = streaming.read_rows
    monkeypatch.setattr(streaming, "read_rows", lambda x, rows: seen.append(rows) or read(x, rows))
    for engine in ("sequential", "vectorised"):
        seen.clear()
        fb.run_round(experiment, experiment.start(), [2, 5, 6, 11], ENGINES[engine])
        rows = np.concatenate(seen)
        assert len(np.unique(rows)) == len(rows)  # each once
        assert sorted(rows) == np.flatnonzero(np.isin(users, [2, 5, 6, 11])).tolist()
        most = {"sequential": EACH, "vectorised": 3 * EACH}[engine]
        assert max(map(len, seen)) == most  # the clients that train together


@pytest.mark.parametrize("kind", ["uint8", "float16", "float32", "float64", "int32", "int64"])
def test_rows_of_every_type_are_the_inputs_that_they_would_be_in_memory(kind: str) -> None:
    array = np.arange(24).reshape(8, 3).astype(kind)
    y, users = [0, 1] * 4, [0] * 4 + [1] * 4
    inside = fb.Federation.from_users(array, y, users)
    outside = fb.Federation.from_users(mapped(array), y, users)
    assert outside.streamed and outside.input_type == inside.x.dtype
    assert torch.equal(outside.inputs([5, 0]), inside.x[[5, 0]])
    assert outside.describe() == inside.describe()
    read = outside.compact()
    assert not read.streamed and torch.equal(read.x, inside.x)


def test_a_file_has_the_hash_of_its_numbers_and_is_checked() -> None:
    array = np.arange(24, dtype="float32").reshape(8, 3)
    y, users = [0, 1] * 4, [0] * 4 + [1] * 4
    inside = fb.Federation.from_users(array, y, users)
    assert fb.Federation.from_users(mapped(array), y, users).hash() == inside.hash()
    array[6, 1] = np.nan
    with pytest.raises(fb.DataError, match=r"not finite .*row 6 of the file"):
        fb.Federation.from_users(mapped(array), y, users)


def test_a_federation_over_a_file_is_not_saved_but_what_was_read_of_it_is() -> None:
    x, y, users = pixels()
    data = fb.Federation.from_users(mapped(x), y, users)
    assert "240 rows of 1 x 4 x 4 in a file" in repr(data)
    with pytest.raises(fb.DataError, match="in a file of their own"):
        data.save("data.npz")
    data.subset([1, 4]).compact().save("data.npz")
    assert fb.Federation.load("data.npz").clients == 2


def test_a_run_from_a_file_can_be_resumed_and_exported() -> None:
    x, y, users = pixels()
    data = fb.Federation.from_users(mapped(x), y, users)
    method = METHODS["fedavg"]()
    whole = fb.run(method, data, rounds=2, cohort=3, out="whole")

    def stop(done: fb.RoundDone) -> None:
        raise fb.StopRun

    fb.run(method, data, rounds=2, cohort=3, out="run", on_round=stop)
    assert fb.resume("run", method=method, data=data).scores() == whole.scores()
    model = fb.export_model("run", 1, method=method, data=data, out="m.safetensors")
    np.savez("x.npz", x=x)
    wanted = fb.personal("run", 1, method, data).predict(data.inputs(range(240)))
    given = fb.predict(model, "x.npz", method).probabilities
    assert given == pytest.approx(torch.softmax(wanted, -1).numpy(), abs=1e-6)


def test_shifts_of_a_file_are_made_in_memory() -> None:
    x, y, users = pixels()
    data = fb.Federation.from_users(mapped(x), y, users)
    inside = fb.Federation.from_users(x, y, users)
    turned = fb.shifts.rotate(data, 4)
    assert torch.equal(turned.x, fb.shifts.rotate(inside, 4).x)


LARGE = """
import resource
import numpy as np
import torch
from torch import nn
import fedblocks as fb

torch.set_num_threads(1)
rows, clients = 2**15, 2**7
x = np.lib.format.open_memmap("large.npy", "w+", "float32", (rows, 2**12))  # 512 MiB, mostly holes
y = np.arange(rows) % 2
x[np.arange(64), 0] = y[:64]
del x
used = int(open("/proc/self/status").read().split("VmData:")[1].split()[0]) * 1024
resource.setrlimit(resource.RLIMIT_DATA, (used + 2**27, used + 2**27))
x = np.load("large.npy", mmap_mode="r")
data = fb.Federation.from_users(x, y, np.arange(rows) // (rows // clients))
net = fb.Net.of(lambda: nn.Sequential(nn.Linear(2**12, 2)))
run = fb.run(fb.FedAvg(net, lr=0.1), data, rounds=2, cohort=4, evaluation={"every": 2}, out="run")
print("rounds", run.rounds)
try:
    np.array(x)
except MemoryError:
    print("does not fit")
"""


def test_a_file_trains_in_a_process_that_may_have_a_quarter_of_it_in_memory() -> None:
    done = subprocess.run([sys.executable, "-c", LARGE], capture_output=True, text=True)
    assert done.stdout.splitlines()[-2:] == ["rounds 2", "does not fit"], done.stderr
