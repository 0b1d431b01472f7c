"""Folders, keys, ports and processes of a federation, without starting one."""

from __future__ import annotations

import os
import socket
import ssl
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fedblocks.config.model import Config
from fedblocks.core.errors import RunFolderError, UserError
from fedblocks.flower.hosts import launch, running
from fedblocks.flower.hosts.folders import ClientHost, ServerHost, is_loopback
from fedblocks.flower.hosts.process_group import ProcessGroup, find_marked, trim_log
from fedblocks.flower.hosts.server_host import host_server
from fedblocks.flower.hosts.setup import set_up
from fedblocks.flower.keys.private_files import hold_server_folder
from fedblocks.runs.run import REAL, resume
from fedblocks.runs.storage.folder import RunFolder

FREE = {"one": [0], "two": [1, 2]}


@pytest.mark.parametrize("address", ["10.0.0.1", "fl.example.org", "0.0.0.0", "::", "192.168.1.5"])
def test_nothing_but_loopback_goes_without_certificates(address: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="certificates and keys are needed"):
        set_up(tmp_path, address, FREE, insecure=True)
    assert not is_loopback(address) and list(tmp_path.iterdir()) == []


def test_loopback_may_go_without(tmp_path: Path) -> None:
    set_up(tmp_path / "f", "127.0.0.1", FREE, insecure=True)
    assert (
        ServerHost.read(tmp_path / "f" / "server").insecure
        and is_loopback("localhost")
        and is_loopback("::1")
    )
    assert not (tmp_path / "f" / "server" / "ca.key").exists()


def test_a_setting_that_was_made_unsafe_by_hand_is_refused(tmp_path: Path) -> None:
    set_up(tmp_path / "f", "127.0.0.1", FREE, insecure=True)
    for file in ("server/server.toml", "one/client.toml"):
        path = tmp_path / "f" / file
        path.write_text(path.read_text().replace("127.0.0.1", "10.0.0.1"))
    with pytest.raises(UserError, match="not this machine alone"):
        ServerHost.read(tmp_path / "f" / "server")
    with pytest.raises(UserError, match="not this machine alone"):
        ClientHost.read(tmp_path / "f" / "one")


def test_a_federation_is_not_made_over_another(tmp_path: Path) -> None:
    pytest.importorskip("cryptography", reason="comes with the extra flower")
    folder = tmp_path / "f"
    assert set_up(folder, "fl.example.org", FREE) == [
        str(folder / name) for name in ("server", "one", "two")
    ]
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    with pytest.raises(UserError, match="is not empty"):
        set_up(folder, "fl.example.org", {**FREE, "three": [3]})
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before
    assert ServerHost.read(folder / "server").clients == {"one": (0,), "two": (1, 2)}


def test_certificates_are_believed_for_the_names_of_the_server_only(tmp_path: Path) -> None:
    pytest.importorskip("cryptography", reason="comes with the extra flower")
    set_up(tmp_path / "f", "fl.example.org", FREE)
    server = tmp_path / "f" / "server"
    inside = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    inside.load_cert_chain(server / "server.crt", server / "server.key")
    outside = ssl.create_default_context(cafile=str(server / "ca.crt"))
    assert shaken(inside, outside, "fl.example.org") and shaken(inside, outside, "127.0.0.1")
    assert not shaken(inside, outside, "other.example.org")
    assert not shaken(inside, ssl.create_default_context(), "fl.example.org")


def shaken(inside: ssl.SSLContext, outside: ssl.SSLContext, name: str) -> bool:
    """Whether client and server shake hands, in memory."""
    a_in, a_out, b_in, b_out = (ssl.MemoryBIO() for _ in range(4))
    server, client = (
        inside.wrap_bio(a_in, a_out, server_side=True),
        outside.wrap_bio(b_in, b_out, server_hostname=name),
    )
    done = set()
    for _ in range(6):
        for side, into, out in ((client, a_in, b_out), (server, b_in, a_out)):
            try:
                side.do_handshake()
                done.add(side)
            except ssl.SSLWantReadError:
                pass
            except ssl.SSLError:
                return False
            into.write(out.read())
    return len(done) == 2


def test_a_port_in_use_is_told_before_anything_starts() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(
            UserError, match=f"port {port} of .* cannot be used: Address already in use"
        ):
            launch.refuse_used("127.0.0.1", port)


def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "find_spec", lambda name: None)
    with pytest.raises(UserError) as raised:
        launch.need_flower()
    assert raised.value.fix == "pip install 'fedblocks[flower]'"


STUBBORN = """
import signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
print("ready", flush=True)
time.sleep(600)
"""


def test_no_process_is_left_however_stubborn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedblocks.flower.hosts.process_group.GRACE", 0.2)
    with ProcessGroup(tmp_path, {}) as processes:
        processes.start("stubborn", [sys.executable, "-c", STUBBORN])
        launch.until(
            lambda: "ready" in processes.log("stubborn").read_text(), 30, processes.check, "it"
        )
        assert len(processes.living()) == 2
    assert find_marked(processes.mark) == []


def test_processes_end_with_a_parent_that_is_killed(tmp_path: Path) -> None:
    code = f"""
from pathlib import Path; import time
from fedblocks.flower.hosts.process_group import ProcessGroup
ProcessGroup(Path({str(tmp_path)!r}), {{}}, mark="orphans").start("child", ["sleep", "600"])
print("ready", flush=True); time.sleep(600)
"""
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None and parent.stdout.readline() == b"ready\n"
        parent.kill()
    end = time.monotonic() + 30
    while find_marked("orphans") and time.monotonic() < end:
        time.sleep(0.02)
    assert find_marked("orphans") == []


def test_a_process_that_ended_is_started_again_a_few_times(tmp_path: Path) -> None:
    with ProcessGroup(tmp_path, {}) as processes:
        processes.start("short", [sys.executable, "-c", "print('bye')"])
        for _ in range(2):
            processes.running["short"].wait()
            assert processes.revive(most=2) == ["short"]
        processes.running["short"].wait()
        with pytest.raises(UserError, match="short ended with code 0: bye"):
            processes.revive(most=2)


@pytest.mark.parametrize("port", [4321, 5321], ids=["same port", "other port"])
def test_a_second_server_of_a_folder_is_refused_and_names_the_first(
    port: int, tmp_path: Path
) -> None:
    set_up(tmp_path / "f", "127.0.0.1", {"one": [0]}, 4321, insecure=True)
    server = tmp_path / "f" / "server"
    first = f"""
import sys; from pathlib import Path
from fedblocks.flower.keys.private_files import hold_server_folder
with hold_server_folder(Path({str(server)!r})):
    print("ready", flush=True); sys.stdin.read()
"""
    words = [sys.executable, "-c", first]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stdout.readline() == b"ready\n"
        host = ServerHost.read(server).model_copy(update={"port": port, "inner_port": port + 1})
        host.write(server)
        with pytest.raises(UserError, match=rf"\(process {process.pid}\) already works in"):
            host_server(server, print)
        process.kill()
    with hold_server_folder(server):  # the system has let it go
        assert (server / "server.pid").read_text() == f"{os.getpid()}\n"


WRITER = """
for line in range(100):
    print(f"line {line:06}", "x" * 90, flush=True)
print("done", flush=True)
"""


def test_a_log_never_grows_beyond_its_bound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """100 lines of 102 bytes are more than 4000 bytes: the last 4000 are kept beside the log."""
    monkeypatch.setattr("fedblocks.flower.hosts.process_group.LOG", 4000)
    monkeypatch.setattr(running, "take_up", lambda server, tell: None)
    with ProcessGroup(tmp_path, {}) as processes:
        processes.start("writer", [sys.executable, "-c", WRITER + "import time; time.sleep(600)"])
        log = processes.log("writer")
        launch.until(lambda: "done" in log.read_text(), 30, processes.check, "its lines")
        assert log.stat().st_size > 10_000
        running.look_after(processes, tmp_path, print)
        assert log.stat().st_size == 0
        kept = tmp_path / "writer.log.1"
        assert kept.read_text().endswith("done\n") and kept.stat().st_size == 4000
        assert kept.stat().st_mode & 0o777 == 0o600
        running.look_after(processes, tmp_path, print)
        assert kept.stat().st_size == 4000  # a short log is left alone


def test_a_process_goes_on_writing_to_a_log_that_was_cut(tmp_path: Path) -> None:
    with ProcessGroup(tmp_path, {}) as processes:
        code = "import os, time\nprint('a' * 100, flush=True)\n"
        code += f"while not os.path.exists({str(tmp_path / 'go')!r}): time.sleep(0.01)\n"
        processes.start("writer", [sys.executable, "-c", code + "print('end', flush=True)"])
        log = processes.log("writer")
        launch.until(lambda: log.stat().st_size > 100, 30, processes.check, "its line")
        trim_log(log, 50)
        (tmp_path / "go").touch()
        processes.running["writer"].wait(30)
        assert log.read_text() == "end\n"


def test_a_run_of_a_real_federation_is_not_resumed_as_a_simulation(tmp_path: Path) -> None:
    table = {
        "rounds": 1,
        "data": {"name": "digits", "clients": 2},
        "net": {"name": "mlp"},
        "method": {"name": "fedper"},
    }
    with RunFolder.create(tmp_path / "run", Config.of(table).resolved(), {}) as folder:
        folder.store.set_meta(REAL, "run-1")
        folder.set_status("interrupted")
    with pytest.raises(RunFolderError, match="whose clients hold a part of it"):
        resume(tmp_path / "run")


def test_the_environment_of_processes_is_quiet(tmp_path: Path) -> None:
    variables = launch.environment(tmp_path)
    assert (
        variables["FLWR_TELEMETRY_ENABLED"] == "0" and variables["FLWR_DISABLE_UPDATE_CHECK"] == "1"
    )
    assert variables["FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION"] == "1"
    assert variables["PATH"].split(os.pathsep)[0] == str(Path(sys.executable).parent)
