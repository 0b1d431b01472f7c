"""A device by its name: one of several GPUs, too, or an early word that it is not there."""

from pathlib import Path
from typing import Any

import pytest
import torch

import fedblocks as fb
from fedblocks.cli import main
from fedblocks.engines.devices import find_device


@pytest.fixture
def two_gpus(monkeypatch: pytest.MonkeyPatch) -> list[torch.device]:
    """A machine with two GPUs, and which of them were made the current one."""
    chosen: list[torch.device] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", chosen.append)
    return chosen


def test_a_gpu_with_a_number_becomes_the_current_one(two_gpus: list[torch.device]) -> None:
    assert find_device("cuda:1") == torch.device("cuda:1")
    assert find_device("cuda") == torch.device("cuda")
    assert find_device("cpu") == torch.device("cpu")
    assert two_gpus == [torch.device("cuda:1")]


def test_a_gpu_that_is_not_there_is_named(two_gpus: list[torch.device]) -> None:
    with pytest.raises(fb.UserError, match="no cuda:2: torch finds 2 of them") as error:
        find_device("cuda:2")
    assert error.value.fix == "use at most cuda:1"


@pytest.mark.parametrize("name", ["gpu", "cuda:", "cuda:one", "cuda:1 ", "mps"])
def test_what_is_no_device_is_refused(name: str) -> None:
    with pytest.raises(fb.UserError, match="there is no device"):
        find_device(name)


@pytest.fixture
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


@pytest.mark.usefixtures("no_gpu")
def test_a_run_says_so_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(fb.UserError, match="torch finds no GPU"):
        fb.run(
            fb.FedAvg(fb.small_net()), fb.small_federation(), 1, tmp_path / "run", device="cuda:1"
        )
    assert not (tmp_path / "run").exists()


@pytest.mark.usefixtures("no_gpu")
def test_a_benchmark_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["bench", "J1", "--device", "cuda:1"])
    assert "torch finds no GPU" in capsys.readouterr().err


def client_host(folder: Path, device: str) -> Any:
    from fedblocks.flower.hosts.folders import ClientHost

    data = {"name": "digits", "clients": 1}
    host = ClientHost(federation="f", server="a:1", clients=(0,), device=device, data=data)
    host.write(folder)
    return host


@pytest.mark.usefixtures("no_gpu")
def test_a_client_of_a_federation_says_so_when_it_starts(tmp_path: Path) -> None:
    pytest.importorskip("flwr", reason="Flower is not installed: pip install 'fedblocks[flower]'")
    from fedblocks.flower.client.node import check

    client_host(tmp_path, "cuda:1")
    with pytest.raises(fb.UserError, match=r"client\.toml: device: torch finds no GPU"):
        check(tmp_path)


def test_client_toml_has_any_device_but_no_other_word(tmp_path: Path) -> None:
    assert client_host(tmp_path, "cuda:1").device == "cuda:1"
    with pytest.raises(ValueError, match="device"):
        client_host(tmp_path, "gpu")
