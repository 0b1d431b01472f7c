"""A kernel that is wrong for some sizes is not used for them; and what is known of kernels outlives
the process, in a folder that nobody else can write to.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from fedblocks.kernels import private_cache, trust
from fedblocks.kernels.cuda import nvrtc
from fedblocks.kernels.grouped import convolve_in_groups, weight_gradient_in_groups
from fedblocks.kernels.triton.tiles import product_tiles
from fedblocks.kernels.trust import KernelUse, run_checked

USE = KernelUse("doubling", (3,), "tf32")
CLIENTS = 3


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of its own, and nothing known."""
    monkeypatch.setattr(trust, "_errors", {})
    monkeypatch.setenv(private_cache.FOLDER, str(tmp_path / "kernels"))
    return tmp_path / "kernels"


class Kernel:
    """Twice a tensor, but for an error in its last number."""

    def __init__(self, error: float = 0.0) -> None:
        self.error, self.clients = error, []

    def __call__(self, x: Tensor) -> Tensor:
        self.clients.append(len(x))
        y = 2 * x
        y[..., -1] += self.error * 2
        return y


def twice(x: Tensor) -> Tensor:
    return 2 * x


def call(kernel: Kernel, x: Tensor | None = None) -> Tensor:
    x = torch.zeros(CLIENTS, 5) if x is None else x  # which says nothing about a kernel
    return run_checked(USE, kernel, twice, (x,), ())


def test_a_right_kernel_is_checked_once_on_few_clients_and_used() -> None:
    kernel = Kernel(error=1e-3)  # which tf32 allows
    y = [call(kernel) for _ in range(3)]
    assert kernel.clients == [trust.CLIENTS, CLIENTS, CLIENTS, CLIENTS]
    assert all(float(one[0, -1]) == pytest.approx(2e-3) for one in y)


def test_a_wrong_kernel_is_not_used_and_this_is_said_once() -> None:
    kernel = Kernel(error=0.04)  # of the largest number, as Triton 3.6 had it
    with pytest.warns(RuntimeWarning, match=r"doubling, tf32, sizes \(3,\)\) is wrong by") as said:
        y = [call(kernel) for _ in range(3)]
    assert len(said) == 1 and kernel.clients == [trust.CLIENTS]
    assert all(torch.equal(one, torch.zeros(CLIENTS, 5)) for one in y)


@pytest.mark.parametrize("error", [float("nan"), float("inf")])
def test_a_kernel_that_gives_no_numbers_is_not_used(error: float) -> None:
    with pytest.warns(RuntimeWarning, match="gives no result"):
        assert call(Kernel(error)).isfinite().all()


@pytest.mark.parametrize(
    "error",
    [
        ValueError("out of shared memory"),
        # a machine that fails, but one that works with torch's operation
        RuntimeError("NVRTC_ERROR_COMPILATION"),
        RuntimeError("CUDA error: no kernel image is available for execution on the device"),
    ],
    ids=["shared memory", "compiler", "old GPU"],
)
def test_a_kernel_that_cannot_be_compiled_is_not_used(error: Exception) -> None:
    def kernel(x: Tensor) -> Tensor:
        raise error

    with pytest.warns(RuntimeWarning, match="gives no result"):
        y = run_checked(USE, kernel, twice, (torch.ones(1, 2),), ())
    assert y.tolist() == [[2, 2]]


def test_a_check_that_finds_no_memory_says_nothing_of_the_kernel(folder: Path) -> None:
    memory = [False]

    def kernel(x: Tensor) -> Tensor:
        if not memory[0]:
            raise RuntimeError("CUDA error: out of memory")
        return 2 * x

    with pytest.raises(RuntimeError, match="out of memory"):
        run_checked(USE, kernel, twice, (torch.ones(1, 2),), ())
    assert not folder.exists() or not any(folder.iterdir())
    memory[0] = True
    assert run_checked(USE, kernel, twice, (torch.ones(1, 2),), ()).tolist() == [[2, 2]]
    assert trust._errors == {(USE, torch.device("cpu")): 0.0}


def test_a_check_tries_a_tensor_as_it_lies_in_memory() -> None:
    lies = []

    def kernel(x: Tensor) -> Tensor:
        lies.append(x.stride()[1:])
        return 2 * x

    run_checked(USE, kernel, twice, (torch.ones(3, 4, 5).mT,), ())
    assert lies == [(1, 5), (1, 5)]


def test_a_later_process_knows_what_a_check_said(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.warns(RuntimeWarning):
        call(Kernel(error=0.04))
    call_again = Kernel(error=0.04)
    monkeypatch.setattr(trust, "_errors", {})  # as in another process
    with pytest.warns(RuntimeWarning, match="wrong by"):
        call(call_again)
    assert call_again.clients == []


def test_other_code_or_another_machine_is_checked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    call(Kernel())
    for what in ("_source_digest", "describe_machine"):
        monkeypatch.setattr(trust, "_errors", {})
        monkeypatch.setattr(trust, what, lambda *_: "another")
        kernel = Kernel()
        call(kernel)
        assert kernel.clients == [trust.CLIENTS, CLIENTS]


def test_what_is_kept_is_found_and_the_folder_is_ours_alone(folder: Path) -> None:
    assert private_cache.recall("a") is None
    private_cache.keep("a", b"code")
    private_cache.keep("a", b"newer")
    assert private_cache.recall("a") == b"newer"
    assert os.listdir(folder) == ["a"] and folder.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("cut", [0, 10, -1])
def test_a_damaged_file_is_as_good_as_missing_and_written_anew(folder: Path, cut: int) -> None:
    private_cache.keep("a", b"code")
    (folder / "a").write_bytes((folder / "a").read_bytes()[:cut])
    assert private_cache.recall("a") is None
    private_cache.keep("a", b"code")
    assert private_cache.recall("a") == b"code"


@pytest.mark.parametrize("mode", [0o777, 0o770, 0o702])
def test_a_folder_that_others_may_write_to_is_not_used(folder: Path, mode: int) -> None:
    private_cache.keep("a", b"code")
    folder.chmod(mode)
    assert private_cache.recall("a") is None
    private_cache.keep("b", b"code")
    folder.chmod(0o700)
    assert private_cache.recall("b") is None and private_cache.recall("a") == b"code"


def test_a_folder_of_somebody_else_is_not_used(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    private_cache.keep("a", b"code")
    monkeypatch.setattr(os, "getuid", lambda: folder.stat().st_uid + 1)
    assert private_cache.recall("a") is None


def test_links_are_not_followed(folder: Path, tmp_path: Path) -> None:
    private_cache.keep("a", b"code")
    (folder / "b").symlink_to(folder / "a")
    assert private_cache.recall("b") is None
    folder.rename(tmp_path / "elsewhere")
    folder.symlink_to(tmp_path / "elsewhere")
    assert private_cache.recall("a") is None


def test_an_empty_name_of_the_folder_keeps_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(private_cache.FOLDER, "")
    private_cache.keep("a", b"code")
    assert private_cache.cache_path() is None and private_cache.recall("a") is None


def test_the_folder_is_among_the_users_cached_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(private_cache.FOLDER)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cached"))
    assert private_cache.cache_path() == tmp_path / "cached" / "fedblocks" / "kernels"


def test_code_is_compiled_once_for_all_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = []
    machine = ["a GPU", 9, 0, "torch", "cuda", 1]

    def compile_it(source: str, name: str, capability: tuple[int, int]) -> bytes:
        compiled.append(source)
        return b"machine code of " + source.encode()

    monkeypatch.setattr(nvrtc, "_compile", compile_it)
    monkeypatch.setattr(nvrtc, "describe_machine", lambda device: machine)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    first = [nvrtc._machine_code(source, "a.cu", 0) for source in ("a", "a", "b")]
    assert first == [b"machine code of a"] * 2 + [b"machine code of b"]
    assert compiled == ["a", "b"]
    machine[-1] = 2  # another driver
    nvrtc._machine_code("a", "a.cu", 0)
    assert compiled == ["a", "b", "a"]


@pytest.mark.parametrize("stride", [1, 2, 3])
@pytest.mark.parametrize(("size", "kernel", "pad"), [(7, 3, 1), (8, 3, 0), (6, 1, 0), (9, 4, 2)])
def test_convolutions_by_torch_alone_are_those_of_each_client(
    size: int, kernel: int, pad: int, stride: int
) -> None:
    noise = torch.Generator().manual_seed(0)
    x = torch.randn(3, 2, 4, size, size, generator=noise, dtype=torch.double, requires_grad=True)
    w = torch.randn(3, 5, 4, kernel, kernel, generator=noise, dtype=torch.double)
    w.requires_grad_()
    b = torch.randn(3, 5, generator=noise, dtype=torch.double)
    expected = torch.stack([F.conv2d(x[i], w[i], b[i], stride, pad) for i in range(3)])
    dy = torch.randn(expected.shape, generator=noise, dtype=torch.double)
    dx, dw = torch.autograd.grad(expected, (x, w), dy)
    outputs = tuple(expected.shape[-2:])
    with torch.no_grad():
        assert torch.allclose(convolve_in_groups(x, w, b, outputs, (pad, stride, 1)), expected)
        turned, back = w.flip(-1, -2).transpose(1, 2), (kernel - 1 - pad, 1, stride)
        assert torch.allclose(convolve_in_groups(dy, turned, None, (size, size), back), dx)
        assert torch.allclose(weight_gradient_in_groups(x, dy, kernel, (pad, stride)), dw)


def test_no_tile_of_single_products_is_of_the_kind_that_triton_gets_wrong() -> None:
    """Found on an H200 with Triton 3.6: depth 32 in two stages on four warps or more, and depth 16
    in three or more stages, unless 128 outputs of 64 filters are done by four warps.
    """
    sizes = [(filters, inner) for filters in range(1, 300) for inner in (9, 27, 65, 180, 1170)]
    for filters, inner in sizes:
        for precision in ("tf32", "bf16"):
            rows, block, deep, warps, stages = product_tiles(filters, inner, precision)
            assert not (deep == 32 and stages == 2 and warps >= 4)
            right = (rows, block, warps) == (128, 64, 4) or precision == "bf16"
            assert right or not (deep == 16 and stages >= 3)
        *_, deep, warps, stages = product_tiles(filters, inner, "tf32x3")
        assert not (deep == 16 and stages >= 3)


@pytest.mark.parametrize("piece", [1, 4, 5, 100])
def test_errors_are_looked_for_in_every_piece_of_a_result(
    piece: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trust, "PIECE", piece)
    actual = torch.arange(12.0).view(3, 4).mT  # not as it lies in memory
    for place in range(12):
        expected = actual.double().contiguous()
        expected.view(-1)[place] += 0.5
        assert float(trust._largest_difference(actual, expected)) == 0.5
    nothing = torch.full((4, 3), torch.nan, dtype=torch.double)
    assert trust._largest_difference(actual, nothing).isnan()  # which counts as wrong
