"""An app gets its token unseen, and a process that hides its environment is ended like others."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from fedblocks.flower.hosts import process_group
from fedblocks.flower.hosts.process_group import ProcessGroup
from fedblocks.flower.hosts.superexec import start_app

SHOW = """
import sys
token = open(sys.argv[sys.argv.index("--token-file") + 1]).read()
is_shown = token.encode() in open("/proc/self/cmdline", "rb").read()
print(sys.argv[1:3], token, is_shown, sys.argv[-1])
"""


def test_an_app_reads_its_token_from_a_file_without_a_name() -> None:
    before = len(os.listdir("/proc/self/fd"))
    command = [sys.executable, "-c", SHOW, "--address", "here", "--token", "secret", "--insecure"]
    app = start_app(command, stdout=subprocess.PIPE)
    said, _ = app.communicate(timeout=30)
    assert said.decode() == "['--address', 'here'] secret False --insecure\n"
    assert len(os.listdir("/proc/self/fd")) == before


def test_an_app_without_a_token_is_started_as_it_is() -> None:
    app = start_app([sys.executable, "-c", "print('here')"], stdout=subprocess.PIPE)
    assert app.communicate(timeout=30)[0] == b"here\n"


@pytest.mark.timeout(30)
def test_a_process_that_hides_its_environment_is_ended_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process_group, "find_marked", lambda mark: [])
    monkeypatch.setattr(process_group, "GRACE", 0.1)
    deaf = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(1, flush=True)"
    with ProcessGroup(tmp_path, {}) as processes:
        process = processes.start("deaf", [sys.executable, "-c", f"{deaf}; signal.pause()"])
        while not processes.log("deaf").read_text():
            processes.check()
    assert process.returncode == -9
