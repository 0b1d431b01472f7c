"""CUDA sources compiled while a program runs, with the compiler that torch brings along (NVRTC)."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

Constants = tuple[tuple[str, int], ...]  # names and values

_OPTIONS = ("--std=c++17", "--define-macro=NDEBUG")


@dataclass(frozen=True)
class Kernel:
    """One function on the device."""

    function: ctypes.c_void_p

    def __call__(self, grid: tuple[int, ...], threads: int, *args: Tensor | int) -> None:
        """Queue it on the current stream; tensors are handed over as pointers, numbers
        as C integers.
        """
        values = [
            ctypes.c_void_p(a.data_ptr()) if isinstance(a, Tensor) else ctypes.c_int(a)
            for a in args
        ]
        pointers = (ctypes.c_void_p * len(values))(
            *(ctypes.cast(ctypes.byref(v), ctypes.c_void_p) for v in values)
        )
        x, y, z = (*grid, 1, 1)[:3]
        if 0 in grid:
            return  # nothing to do, which CUDA takes for a mistake
        _enter(torch.cuda.current_device())
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        _check(
            _library().cuLaunchKernel(
                self.function, x, y, z, threads, 1, 1, 0, stream, pointers, None
            )
        )


@cache
def available() -> bool:
    """Whether this build of torch brings the compiler along, and it knows the device."""
    nothing = 'extern "C" __global__ void nothing() {}'
    try:
        _compile(nothing, "nothing.cu", torch.cuda.get_device_capability())
    # no such library, another compiler in it, another kind of device
    except (OSError, AttributeError, RuntimeError):
        return False
    return True


@cache
def kernels(
    source: Path, constants: Constants, names: tuple[str, ...], device: int
) -> Mapping[str, Kernel]:
    """The functions of a source file, compiled for these constants and for one device."""
    defines = "".join(f"#define {name} {value}\n" for name, value in constants)
    binary = _compile(
        defines + source.read_text(), source.name, torch.cuda.get_device_capability(device)
    )
    _enter(device)
    module = ctypes.c_void_p()
    _check(_library().cuModuleLoadData(ctypes.byref(module), binary))
    return {name: Kernel(_function(module, name)) for name in names}


def _compile(source: str, name: str, capability: tuple[int, int]) -> bytes:
    library, program = _library(), ctypes.c_void_p()
    _check(
        library.nvrtcCreateProgram(
            ctypes.byref(program), source.encode(), name.encode(), 0, None, None
        )
    )
    options = [o.encode() for o in (*_OPTIONS, "--gpu-architecture=sm_{}{}".format(*capability))]
    failed = library.nvrtcCompileProgram(
        program, len(options), (ctypes.c_char_p * len(options))(*options)
    )
    if failed:
        raise RuntimeError(f"{name} cannot be compiled:\n{_text(program, 'ProgramLog').decode()}")
    binary = _text(program, "CUBIN")
    _check(library.nvrtcDestroyProgram(ctypes.byref(program)))
    return binary


def _text(program: ctypes.c_void_p, what: str) -> bytes:
    """Return an output of the compiler: its log, or the machine code."""
    size = ctypes.c_size_t()
    _check(getattr(_library(), f"nvrtcGet{what}Size")(program, ctypes.byref(size)))
    buffer = ctypes.create_string_buffer(size.value)
    _check(getattr(_library(), f"nvrtcGet{what}")(program, buffer))
    return buffer.raw


def _function(module: ctypes.c_void_p, name: str) -> ctypes.c_void_p:
    function = ctypes.c_void_p()
    _check(_library().cuModuleGetFunction(ctypes.byref(function), module, name.encode()))
    return function


def _enter(device: int) -> None:
    """Make this thread one that uses the device, as torch does; the threads of autograd
    may not have done so yet.
    """
    context = ctypes.c_void_p()
    _check(_library().cuCtxGetCurrent(ctypes.byref(context)))
    if not context:
        _check(_library().cuDevicePrimaryCtxRetain(ctypes.byref(context), device))
        _check(_library().cuCtxSetCurrent(context))


def _check(code: int) -> None:
    if code:
        raise RuntimeError(f"a call of CUDA failed with code {code}")


@cache
def _library() -> ctypes.CDLL:
    """torch's own door to the compiler and the driver, which knows where they are."""
    return ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libcaffe2_nvrtc.so"))
