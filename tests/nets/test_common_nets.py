"""The residual net, the transformers and the GRU that a configuration can name."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import fedblocks as fb
from fedblocks.core.errors import UserError
from fedblocks.nets import NETS

SMALL: dict[str, tuple[str, tuple[int, ...], dict[str, Any]]] = {
    "resnet": ("resnet", (1, 8, 8), {"widths": (4, 8), "blocks": 1, "groups": 2}),
    "vit": ("vit", (1, 8, 8), {"width": 8, "layers": 2, "heads": 2, "dropout": 0.1}),
    "gpt": ("gpt", (5,), {"width": 8, "layers": 2, "heads": 2}),
    "gru over tokens": ("gru", (5,), {"units": 6, "layers": 2}),
    "gru over signals": ("gru", (3, 5), {"units": 6}),
}


@pytest.mark.parametrize("kind", SMALL)
def test_a_named_net_trains_as_in_plain_pytorch_on_both_engines(kind: str) -> None:
    name, shape, options = SMALL[kind]
    net = NETS[name](shape, 4, **options)
    if len(shape) == 1:  # tokens, and a label for each
        text = torch.randint(0, 4, (40, shape[0] + 1), generator=torch.Generator().manual_seed(0))
        report = fb.check_net(net, text[:, :-1], text[:, 1:])
    else:
        report = fb.check_net(net)
    assert report.engines == ("sequential", "vectorised"), str(report)


# sizes by hand. A residual block of width w after v channels has 9 v w + 9 w w + 4 w numbers, and
# v w more where v != w; a transformer layer of width w has 12 w w + 13 w
SIZES = {
    "resnet": (
        3 * 16 * 9
        + 32
        + 3 * (18 * 16 * 16 + 64)
        + (9 * 16 * 32 + 9 * 32 * 32 + 128 + 16 * 32)
        + 2 * (18 * 32 * 32 + 128)
        + (9 * 32 * 64 + 9 * 64 * 64 + 256 + 32 * 64)
        + 2 * (18 * 64 * 64 + 256)
        + 650
    ),
    "vit": 3 * 16 * 192 + 192 + 192 + 65 * 192 + 4 * (12 * 192**2 + 13 * 192) + 2 * 192 + 1930,
}


@pytest.mark.parametrize("name", SIZES)
def test_a_net_has_the_size_of_its_layers(name: str) -> None:
    assert NETS[name]((3, 32, 32), 10).size() == SIZES[name]


def test_a_prediction_of_the_next_token_does_not_see_later_tokens() -> None:
    net = NETS["gpt"]((6,), 9, width=8, layers=2, heads=2)
    tokens = torch.tensor([[1, 2, 3, 4, 5, 6]])
    others = torch.tensor([[1, 2, 3, 8, 7, 0]])
    params = net.init(0)
    one, other = net(params, tokens), net(params, others)
    torch.testing.assert_close(one[:, :3], other[:, :3])
    assert not torch.allclose(one[:, 3:], other[:, 3:], atol=1e-3)


@pytest.mark.parametrize(
    ("name", "shape", "options", "message"),
    [
        ("resnet", (5,), {}, "needs images"),
        ("resnet", (3, 8, 8), {"widths": (12,)}, "12 channels are not 8 equal groups"),
        ("vit", (3, 9, 8), {}, "multiples of patch = 4"),
        ("vit", (3, 8, 8), {"heads": 5}, "width = 192 is not a multiple of heads = 5"),
        ("gpt", (3, 8, 8), {}, "needs tokens"),
        ("gru", (3, 8, 8), {}, "needs tokens .* or signals"),
    ],
)
def test_what_does_not_fit_is_refused(
    name: str, shape: tuple[int, ...], options: dict[str, Any], message: str
) -> None:
    with pytest.raises(UserError, match=message):
        NETS[name](shape, 10, **options)
