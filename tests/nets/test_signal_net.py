"""Convolutions over time."""

import pytest
import torch

from fedblocks.core.errors import UserError
from fedblocks.nets import NETS


def test_the_net_for_signals_has_the_size_of_its_layers_and_a_logit_for_each_class() -> None:
    net = NETS["signal_cnn"]((3, 52), 6)
    # 52 steps: 48 after a convolution, 24 pooled, 20, 10
    assert net.size() == (3 * 5 + 1) * 16 + (16 * 5 + 1) * 16 + (160 + 1) * 64 + (64 + 1) * 6
    assert net.size() == 12_246
    assert net(net.init(0), torch.zeros(2, 3, 52)).shape == (2, 6)


@pytest.mark.parametrize("shape", [(3, 15), (1, 8, 8), (52,)])
def test_other_inputs_than_signals_of_16_steps_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(UserError, match="needs signals"):
        NETS["signal_cnn"](shape, 6)
    assert NETS["signal_cnn"]((3, 16), 6).size() > 0
