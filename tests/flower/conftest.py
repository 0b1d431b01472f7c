"""Nothing is killed in these tests, so that writes need not wait for the disk."""

import pytest


@pytest.fixture(autouse=True)
def quick_disks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedblocks.runs.storage.checkpoint.sync", lambda path: None)
