"""CUDA sources compiled while a program runs, with the compiler that torch brings along (NVRTC)."""

from __future__ import annotations

import ctypes
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedblocks.kernels.private_cache import keep, recall

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
        _machine_code(nothing, "nothing.cu", torch.cuda.current_device())
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
    binary = _machine_code(defines + source.read_text(), source.name, device)
    _enter(device)
    module = ctypes.c_void_p()
    _check(_library().cuModuleLoadData(ctypes.byref(module), binary))
    return {name: Kernel(_function(module, name)) for name in names}


def describe_machine(device: torch.device) -> list[Any]:
    """What compiled code depends on besides its source: GPU, driver, torch and its compiler."""
    if device.type != "cuda":
        return [device.type, torch.__version__]
    gpu = [torch.cuda.get_device_name(device), *torch.cuda.get_device_capability(device)]
    return [*gpu, torch.__version__, torch.version.cuda, _driver()]


@cache
def _driver() -> int:
    version = ctypes.c_int()
    try:
        _check(_library().cuDriverGetVersion(ctypes.byref(version)))
    except (OSError, AttributeError, RuntimeError):  # no such library: nothing is compiled by it
        return 0
    return version.value


def _machine_code(source: str, name: str, device: int) -> bytes:
    """As an earlier process compiled it, or compiled now."""
    machine = describe_machine(torch.device("cuda", device))
    everything = json.dumps([source, name, _OPTIONS, machine])
    key = f"code-{sha256(everything.encode()).hexdigest()[:32]}"
    binary = recall(key)
    if binary is None:
        binary = _compile(source, name, torch.cuda.get_device_capability(device))
        keep(key, binary)
    return binary


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
