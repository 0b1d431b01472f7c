"""Constant buffers of a user's module: fixed by the code, stored with a run, exported
with a model.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import fedblocks as fb
from fedblocks.export.formats import read
from fedblocks.flower.wire.plans import plan_hash, plan_specs

from .fourier import Fourier, data, method, one_round

PROGRAM = (
    f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r}); import fourier; "
    f"print(fourier.one_round())"
)


def test_another_process_has_the_same_constants_and_so_the_same_numbers() -> None:
    torch.manual_seed(1)  # somebody else's randomness has no part in it
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True, env=os.environ
    )
    assert done.stdout.strip() == one_round()


def test_constants_are_no_tensors_of_the_net_and_cost_no_bytes() -> None:
    net = fb.Net.of(Fourier)
    assert net.names == ["fc.weight", "fc.bias"] and list(net.constants) == ["omega", "order"]
    assert all(torch.equal(v, fb.Net.of(Fourier).constants[k]) for k, v in net.constants.items())


def test_constants_have_the_precision_of_the_net() -> None:
    net = fb.Net.of(Fourier, dtype=torch.float64)
    assert (
        net.constants["omega"].dtype == torch.float64
        and net.constants["order"].dtype == torch.int64
    )
    assert net(net.init(0), torch.zeros(2, 5, dtype=torch.float64)).dtype == torch.float64


def test_making_a_net_leaves_the_callers_randomness_alone() -> None:
    torch.manual_seed(5)
    before = torch.get_rng_state()
    fb.Net.of(Fourier)
    assert torch.equal(torch.get_rng_state(), before)


def test_a_stored_run_brings_its_constants_to_a_module_that_drew_others(tmp_path: Path) -> None:
    """The module is handed over as an instance, so another process would have drawn
    other constants.
    """
    torch.manual_seed(1)
    first = method(fb.Net.of(Fourier()))
    run = fb.run(first, data(), rounds=3, out=tmp_path / "run")
    torch.manual_seed(2)
    other = method(fb.Net.of(Fourier()))
    assert not torch.equal(other.net.constants["omega"], first.net.constants["omega"])
    x = data().x[:9]
    wanted, found = (
        fb.personal(run, 0, first, data()).predict(x),
        fb.personal(run, 0, other, data()).predict(x),
    )
    assert torch.equal(wanted, found)


def test_a_resumed_run_goes_on_with_its_own_constants(tmp_path: Path) -> None:
    def stop(done: fb.RoundDone) -> None:
        if done.round == 2:
            raise KeyboardInterrupt

    torch.manual_seed(1)
    first = method(fb.Net.of(Fourier()))
    whole = fb.run(first, data(), rounds=4, out=tmp_path / "whole")
    with pytest.raises(fb.Interrupted):
        fb.run(first, data(), rounds=4, out=tmp_path / "stopped", on_round=stop)
    torch.manual_seed(2)
    again = fb.resume(tmp_path / "stopped", method(fb.Net.of(Fourier())), data())
    for name, value in whole.state().server["model"].items():
        assert torch.equal(again.state().server["model"][name], value)


# a plain net, and a method that mixes several
@pytest.mark.parametrize("kind", ["fedavg", "fedem"])
def test_an_exported_file_holds_the_constants(kind: str, tmp_path: Path) -> None:
    torch.manual_seed(1)
    first, other = fb.Net.of(Fourier()), fb.Net.of(Fourier())
    methods = [fb.METHODS[kind](net, lr=0.1, batch_size=10) for net in (first, other)]
    run = fb.run(methods[0], data(), rounds=2, out=tmp_path / "run")
    path = fb.export_model(
        run.folder, 1, "safetensors", tmp_path / "m.safetensors", methods[0], data()
    )
    x = data().x[:9]
    wanted = fb.personal(run, 1, methods[0], data()).predict(x)
    torch.testing.assert_close(read(path, methods[1]).logits(x), wanted, atol=1e-6, rtol=0)


def test_constants_of_another_net_are_refused() -> None:
    with pytest.raises(fb.NetError, match="omega"):
        fb.Net.of(Fourier).set_constants({"omega": torch.zeros(5, 15), "order": torch.arange(16)})


def test_two_sides_of_a_federation_with_other_constants_do_not_agree_on_a_plan() -> None:
    one, other = method(fb.Net.of(Fourier)), method(fb.Net.of(Fourier))
    before = plan_hash(one, plan_specs(one, 0), 0)
    assert plan_hash(other, plan_specs(other, 0), 0) == before
    other.net.set_constants({**other.net.constants, "omega": torch.zeros(5, 16)})
    assert plan_hash(other, plan_specs(other, 0), 0) != before
