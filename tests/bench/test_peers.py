"""Other libraries take turns with ours; what they are given is the same job."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import asdict

import pytest

from fedblocks.bench import peers
from fedblocks.bench.jobs import JOBS, BenchJob
from fedblocks.bench.measure import Contender
from fedblocks.bench.page import with_results
from fedblocks.core.errors import UserError
from fedblocks.nets import NETS

SMALL = BenchJob("J7", "small", "mlp", (1, 4, 4), 3, 4, 2, 8, 4)
OBEDIENT = """
import json, os, sys
print(json.dumps({"package": "fake", "version": "1", "note": "a fake"}), flush=True)
for line in sys.stdin:
    print(json.dumps({"clients": CLIENTS}), flush=True)
"""


@pytest.fixture
def fake(tmp_path, monkeypatch):
    """Installs a script as if it were the one for fluke, in an environment that is this Python."""
    monkeypatch.setenv("FEDBLOCKS_PEERS", str(tmp_path))
    monkeypatch.setattr(peers, "SCRIPTS", tmp_path)
    (tmp_path / "fluke" / "bin").mkdir(parents=True)
    (tmp_path / "fluke" / "bin" / "python").symlink_to(sys.executable)
    return lambda text: (tmp_path / "with_fluke.py").write_text(text)


def test_a_peer_our_engines_and_the_loop_take_turns_on_one_job(fake) -> None:
    fake(OBEDIENT.replace("CLIENTS", str(SMALL.cohort)))
    found = peers.beside("fluke", SMALL, repeat=2)
    assert set(found["sides"]) == {"plain loop", "sequential", "processes", "fluke"}
    assert all(
        len(side["seconds"]) == len(side["cpu_seconds"]) == 2 for side in found["sides"].values()
    )
    assert found["hello"]["note"] == "a fake" and found["noted"] == {"clients": 2}


def test_a_round_with_other_clients_than_ours_is_no_measurement(fake) -> None:
    fake(OBEDIENT.replace("CLIENTS", "3"))
    with pytest.raises(UserError, match="it trained 3 clients, not 2"):
        peers.beside("fluke", SMALL, repeat=1)


def test_a_peer_that_breaks_is_listed_with_its_last_words_and_one_that_is_absent_with_its_command(
    fake, tmp_path
) -> None:
    fake("raise SystemExit('no torch here')")
    found = peers.run_peers(["J7"], 1, lambda found: None)
    assert found["results"] == [] and found["failed"] == {
        "J7 with fluke": "it ended early: no torch here"
    }
    assert set(found["missing"]) == {"flower", "pfl"}
    assert found["missing"]["pfl"].startswith(
        f"python -m venv {tmp_path}/pfl && {tmp_path}/pfl/bin/pip install torch=="
    )
    assert found["missing"]["pfl"].endswith("'pfl==0.6.0'")


def test_only_jobs_that_the_scripts_know_are_run_with_peers() -> None:
    with pytest.raises(UserError, match="J6 is not written for peers"):
        peers.run_peers(["J6"], 1, lambda found: None)


def test_peers_train_the_same_nets_on_as_many_examples() -> None:
    jobs = [JOBS[name] for name in peers.JOBS]
    sizes = [(job.net, job.shape, job.classes) for job in jobs]
    code = (
        f"import json, peer_job as p\nnets = [p.NETS[net](shape, classes) for net, shape, "
        f"classes in {sizes}]\n"
    )
    code += (
        "print(json.dumps([[[str(layer) for layer in net] for net in nets], [len(part) for "
        "part in p.rows(1)]]))"
    )
    arguments = json.dumps(asdict(SMALL))
    environ = {**os.environ, "PYTHONPATH": str(peers.SCRIPTS), "FEDBLOCKS_PEER_JOB": arguments}
    run = subprocess.run(
        [sys.executable, "-c", code], env=environ, capture_output=True, text=True, check=True
    )
    nets, rows = json.loads(run.stderr)  # the scripts keep the standard output for themselves
    ours = [NETS[job.net](job.shape, job.classes, **job.net_options).make() for job in jobs]
    assert nets == [[str(layer) for layer in net] for net in ours]  # with the sizes of each
    assert rows == [SMALL.examples, SMALL.examples]


def test_processor_time_counts_children() -> None:
    code = "import time\nwhile time.process_time() < 0.3: pass\nprint('burnt', flush=True)\ninput()"
    before, pipe = peers.tree_seconds(os.getpid()), subprocess.PIPE
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=pipe, stdout=pipe, text=True
    ) as child:
        assert child.stdout is not None and child.stdout.readline() == "burnt\n"
        assert peers.tree_seconds(os.getpid()) - before >= 0.25  # 0.3, counted in hundredths
        child.communicate("\n")


def test_the_page_shows_both_engines_beside_each_peer(tmp_path) -> None:
    seconds = {"plain loop": 2.0, "sequential": 1.0, "processes": 0.5, "pfl": 3.0}
    sides = {who: Contender(who, 16, [s], [s / 2], 0) for who, s in seconds.items()}
    result = peers.compare(SMALL, "pfl", sides) | {"load": 0.5}
    result |= {
        "hello": {"package": "pfl", "version": "0.6.0", "note": "n"},
        "noted": {"clients": 2},
    }
    env = {
        "devices": [],
        "cpu": "A CPU",
        "cpu_count": 2,
        "threads": 1,
        "python": "3",
        "platform": "Linux",
        "versions": {"torch": "2"},
        "command": ["fedblocks", "bench", "--peers"],
    }
    found = {
        "env": env,
        "results": [result],
        "failed": {"J1 with pfl": "why"},
        "missing": {"flower": "pip"},
    }
    (tmp_path / "bench-peers.json").write_text(json.dumps(found))
    page = with_results("<!-- bench:peers -->\n<!-- /bench -->", tmp_path)
    # 3 / 1 and 3 / 0.5 in seconds; 1.5 / 0.5 in processor time
    assert (
        "| J7 | 2 of 4 | pfl 0.6.0 | 3.000 | 2.000 | 1.000 | 0.500 | 3.00 | 6.00 | 3.00 | 0.5 |"
        in page
    )
    assert (
        "pfl: n." in page
        and "J1 with pfl not measured: why" in page
        and "flower not measured: not installed" in page
    )
