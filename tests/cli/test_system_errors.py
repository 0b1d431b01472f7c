"""What the system refuses is said as such, and other errors stay errors of ours."""

from __future__ import annotations

import errno
import os
from typing import Any

import pytest

from fedblocks.config import presets

KNOWN = ("EACCES", "EROFS", "ENOTDIR", "EISDIR", "ENAMETOOLONG", "ELOOP")


@pytest.mark.parametrize("name", [*KNOWN, "ENOENT"])
def test_what_the_system_refuses_is_no_bug(
    name: str, fedblocks: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    number = getattr(errno, name)

    def fail(*_: object) -> None:
        raise OSError(number, os.strerror(number), "there/it")

    monkeypatch.setattr(presets, "read_config", fail)
    done = fedblocks("data", "preview", "digits-fedavg")
    if name in KNOWN:
        said = f"error: cannot use there/it: {os.strerror(number)}\n  fix: "
        assert done.code == 2 and done.err.startswith(said) and "bug" not in done.err
    else:
        assert done.code == 1 and "this is a bug" in done.err


def test_a_name_that_is_too_long_is_said_to_be(fedblocks: Any) -> None:
    done = fedblocks("run", "a" * 5000)
    assert done.code == 2 and "File name too long\n  fix: choose a shorter name" in done.err
