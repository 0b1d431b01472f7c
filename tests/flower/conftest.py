"""Nothing is killed in these tests, so that writes need not wait for the disk; and what the apps
of one process wait for comes at once.
"""

from importlib.util import find_spec

import pytest


@pytest.fixture(autouse=True)
def quick_disks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedblocks.runs.storage.checkpoint.sync", lambda path: None)


@pytest.fixture(autouse=True)
def quick_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    if find_spec("flwr") is not None:
        monkeypatch.setattr("fedblocks.flower.server.registry.LOOK", 0.0)
        monkeypatch.setattr("fedblocks.flower.server.registry.PAUSE", 0.01)
        monkeypatch.setattr("fedblocks.flower.server.app.PAUSE", 0.01)
