"""Convolutions with few filters, and the max pooling behind them, for all clients of a
stack: `narrow.cu`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from fedblocks.kernels.cuda import nvrtc

_SOURCE = Path(__file__).with_name("narrow.cu")
_THREADS = 128
_SHARED = 46 << 10  # bytes of shared memory that a block may use anywhere
_MOST = 320  # threads of a block of `weight_gradient`
_FEW = 16  # filters, or channels of an input gradient: four sums of each stay in registers


@dataclass(frozen=True)
class Shape:
    """What the kernels are compiled for."""

    channels: int
    filters: int
    kernel: int
    height: int
    width: int
    pad: int
    stride: int = 1
    pooled: bool = False  # 2 x 2 windows behind it

    @staticmethod
    def of(x: Tensor, w: Tensor, pad: int, stride: int = 1, pooled: bool = False) -> Shape:
        """x [..., channels, height, width], w [..., filters, channels, kernel, kernel]."""
        filters, channels, kernel = w.shape[-4:-1]
        return Shape(channels, filters, kernel, x.shape[-2], x.shape[-1], pad, stride, pooled)

    @property
    def outputs(self) -> tuple[int, int]:
        """Height and width of what the convolution gives."""
        return (
            (self.height + 2 * self.pad - self.kernel) // self.stride + 1,
            (self.width + 2 * self.pad - self.kernel) // self.stride + 1,
        )

    @property
    def results(self) -> tuple[int, int]:
        """Height and width after pooling."""
        return (self.outputs[0] // 2, self.outputs[1] // 2) if self.pooled else self.outputs

    @property
    def tasks(self) -> int:
        """Rows of a filter, and one for the biases; a little more, so that warps begin
        with a row.
        """
        return _fours(self.channels * self.kernel + 1)

    @property
    def together(self) -> int:
        """Filters that a thread of `weight_gradient` looks after: a divisor of all, at
        most eight.
        """
        return max(n for n in range(1, 9) if self.filters % n == 0)

    @property
    def strip(self) -> int:
        """Output rows whose slopes and pixels fit into shared memory, an even number; 0
        if none do.
        """
        rows = self.outputs[0] + self.outputs[0] % 2
        while rows > 0 and 4 * self._kept(rows) > _SHARED:
            rows = rows // 2 + rows // 2 % 2 if rows > 2 else 0
        return rows

    def _kept(self, rows: int) -> int:
        """Numbers that `weight_gradient` keeps in shared memory."""
        image = self.channels * ((rows + self.kernel - 1) * (self.width + 2 * self.pad + 1) + 32)
        slopes = rows * self.outputs[1] * self.filters // self.together * _fours(self.together)
        return slopes + image + self.tasks * self.kernel * self.filters + self.width + 2 * self.pad

    @property
    def groups(self) -> int:
        """Rows of a strip that a block works on at once: as many as divide it and leave
        few enough threads.
        """
        one = self.tasks * self.filters // self.together
        return max(
            (n for n in range(1, self.strip + 1) if self.strip % n == 0 and n * one <= _MOST),
            default=0,
        )

    def fits(self) -> bool:
        """Whether the kernels can do it, and do it well: few filters, small images."""
        weights = 4 * self.channels * self.kernel**2 * _fours(self.filters)
        small = self.filters <= _FEW and self.kernel <= 7 and self.kernel * self.filters <= 96
        return (
            small
            and self.stride == 1
            and weights <= _SHARED
            and min(self.results) > 0
            and self.groups > 0
            and nvrtc.available()
        )

    def fits_backwards(self) -> bool:
        """Whether the gradient of the inputs can be had too."""
        weights = 4 * self.filters * self.kernel**2 * _fours(self.channels)
        return self.fits() and self.channels <= _FEW and weights <= _SHARED

    def kernels(self, device: torch.device) -> Mapping[str, nvrtc.Kernel]:
        sizes = {
            "C": self.channels,
            "F": self.filters,
            "KS": self.kernel,
            "H": self.height,
            "W": self.width,
        }
        ways = {"PAD": self.pad, "POOL": int(self.pooled), "BACKWARDS": int(self.fits_backwards())}
        blocks = {"THREADS": _THREADS, "STRIP": self.strip, "GROUPS": self.groups}
        blocks |= {"FB": self.together, "TASKS": self.tasks}
        index = torch.cuda.current_device() if device.index is None else device.index
        names: tuple[str, ...] = ("forward", "weight_gradient")
        if self.fits_backwards():
            names = (*names, "input_gradient")
        return nvrtc.kernels(_SOURCE, tuple({**sizes, **ways, **blocks}.items()), names, index)


def forward(
    x: Tensor, w: Tensor, bias: Tensor | None, shape: Shape, rectified: bool = False
) -> tuple[Tensor, Tensor]:
    """Outputs [clients, batch, filters, ...], and which pixel of each pooling window
    won; -1 if none got through.
    """
    G, B = x.shape[:2]
    height, width = shape.results
    x = dense(x)
    w = w.contiguous()
    y = torch.empty(G, B, shape.filters, height, width, device=x.device, dtype=x.dtype)
    winner = torch.empty(y.shape if shape.pooled else 0, device=x.device, dtype=torch.int8)
    tiles = height * width if shape.pooled else (height + 1) // 2 * ((width + 1) // 2)
    ways = (int(bias is not None), int(rectified), x.stride(0), B)
    shifts = w if bias is None else bias.contiguous()
    shape.kernels(x.device)["forward"](
        (-(-B * tiles // _THREADS), G), _THREADS, x, w, shifts, y, winner, *ways
    )
    return y, winner


def input_gradient(dy: Tensor, winner: Tensor, w: Tensor, shape: Shape) -> Tensor:
    """[clients, batch, channels, height, width]."""
    G, B = dy.shape[:2]
    dx = torch.empty(
        G, B, shape.channels, shape.height, shape.width, device=dy.device, dtype=dy.dtype
    )
    tiles = (shape.height + 1) // 2 * ((shape.width + 1) // 2)
    grid = (-(-B * tiles // _THREADS), G)
    shape.kernels(dy.device)["input_gradient"](
        grid, _THREADS, dy.contiguous(), winner, w.contiguous(), dx, B
    )
    return dx


def weight_gradient(x: Tensor, dy: Tensor, winner: Tensor, shape: Shape) -> tuple[Tensor, Tensor]:
    """Of weights [clients, filters, channels, kernel, kernel] and biases [clients,
    filters]: parts, then their sum.
    """
    G, B = dy.shape[:2]
    x = dense(x)
    units = B * -(-shape.outputs[0] // shape.strip)
    processors = torch.cuda.get_device_properties(x.device).multi_processor_count
    share = max(1, min(8, units * G // (6 * processors)))
    parts = -(-units // share)
    inner = shape.channels * shape.kernel**2
    dw = torch.empty(parts, G, shape.filters * inner, device=x.device, dtype=x.dtype)
    db = torch.empty(parts, G, shape.filters, device=x.device, dtype=x.dtype)
    arguments = (dy.contiguous(), winner, dw, db, x.stride(0), B, share)
    threads = shape.tasks * shape.groups * shape.filters // shape.together
    shape.kernels(x.device)["weight_gradient"]((parts, G), threads, x, *arguments)
    size = (G, shape.filters, shape.channels, shape.kernel, shape.kernel)
    return dw.sum(0).view(size), db.sum(0)


def dense(x: Tensor) -> Tensor:
    """Contiguous within a client, from an address where pixels can be loaded in fours;
    clients may share an input.
    """
    whole = x if x.stride(0) == 0 and x[0].is_contiguous() else x.contiguous()
    return whole if whole.data_ptr() % 16 == 0 else whole.clone()


def _fours(number: int) -> int:
    return -(-number // 4) * 4
