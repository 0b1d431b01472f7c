"""Workers of one command share GPUs evenly."""

from __future__ import annotations

import pytest
import torch

from fedblocks.recipes.running import gpu_share, process_pool, worker
from fedblocks.recipes.running.gpu_share import SHARE, VISIBLE, environment_of, take_share
from fedblocks.recipes.running.process_pool import ProcessPool


@pytest.mark.parametrize(
    ("count", "visible", "workers", "expected"),
    [
        (0, None, 2, [{}, {}]),
        (1, None, 1, [("0", "1.0")]),
        (1, None, 4, [("0", "0.25")] * 4),
        (2, None, 3, [("0", "0.5"), ("1", "1.0"), ("0", "0.5")]),
        (2, "5, 7", 2, [("5", "1.0"), ("7", "1.0")]),
        (1, "GPU-ab,9", 2, [("GPU-ab", "0.5")] * 2),  # the second one is not there
    ],
)
def test_each_worker_has_one_gpu_and_an_equal_part_of_it(
    count: int, visible: str | None, workers: int, expected: list, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
    monkeypatch.delenv(VISIBLE, raising=False)
    if visible is not None:
        monkeypatch.setenv(VISIBLE, visible)
    said = [dict(zip((VISIBLE, SHARE), pair)) if pair else {} for pair in expected]
    assert [environment_of(number, workers) for number in range(workers)] == said


@pytest.mark.parametrize(
    ("count", "visible", "expected"),
    [(1, None, [("0", "0.5")] * 2), (2, "5,7", [("5", "1.0"), ("7", "1.0")])],
)
def test_workers_are_told_whatever_their_parent_was_told(
    count: int,
    visible: str | None,
    expected: list[tuple[str, str]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
    monkeypatch.delenv(VISIBLE, raising=False)
    if visible is not None:
        monkeypatch.setenv(VISIBLE, visible)
    monkeypatch.setenv(SHARE, "0.125")
    monkeypatch.setenv("OMP_NUM_THREADS", "8")
    begun = []

    def begin(*words: object, env: dict[str, str], **more: object) -> None:
        begun.append((env[VISIBLE], env[SHARE], env["OMP_NUM_THREADS"]))
        raise InterruptedError

    monkeypatch.setattr(process_pool.subprocess, "Popen", begin)
    for own in ProcessPool(2)._workers:
        with pytest.raises(InterruptedError):
            own.work({"seconds": None})
    assert begun == [(*pair, "1") for pair in expected]


@pytest.mark.parametrize(
    ("share", "gpu", "taken"),
    [("0.25", True, [0.25]), ("0.25", False, []), ("1.0", True, []), (None, True, [])],
)
def test_a_worker_takes_its_part_where_others_have_theirs(
    share: str | None, gpu: bool, taken: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(SHARE, raising=False)
    if share is not None:
        monkeypatch.setenv(SHARE, share)
    parts: list[float] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpu)
    monkeypatch.setattr(torch.cuda, "set_per_process_memory_fraction", parts.append)
    take_share()
    assert parts == taken


def test_a_worker_takes_its_share_first_and_gives_memory_back_after_each_batch(
    monkeypatch: pytest.MonkeyPatch, tmp_path: object
) -> None:
    told: list[str] = []
    monkeypatch.setattr(worker, "take_share", lambda: told.append("take"))
    monkeypatch.setattr(worker, "give_back", lambda: told.append("back"))
    monkeypatch.setattr(worker, "answers", lambda batch: told.append(batch) or [])
    monkeypatch.setattr(worker.os, "dup", lambda number: number)
    monkeypatch.setattr(worker.os, "dup2", lambda *numbers: None)

    class Channel:
        def write(self, text: str) -> None:
            told.append("answer")

        def flush(self) -> None: ...

    monkeypatch.setattr(worker.os, "fdopen", lambda *words, **more: Channel())
    monkeypatch.setattr(worker.sys, "stdin", ["1", "2"])
    worker.serve()
    assert told == ["take", 1, "answer", "back", 2, "answer", "back"]


@pytest.mark.parametrize("begun", [True, False])
def test_memory_is_given_back_where_a_gpu_was_used(
    begun: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: begun)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: done.append("emptied"))
    monkeypatch.setattr(gpu_share.gc, "collect", lambda: done.append("collected"))
    gpu_share.give_back()
    assert done == (["collected", "emptied"] if begun else [])
