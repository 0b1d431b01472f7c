"""The commands by which clients come to belong to a federation, in the order of the
documentation.
"""

from __future__ import annotations

import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'fedblocks[flower]'")

from fedblocks.flower.hosts import launch


def test_the_commands_lead_from_one_to_the_next(fedblocks: Any, tmp_path: Path) -> None:
    built = fedblocks("federation", "init", "hospitals", "--server", "fl.example.org")
    assert (
        built.code == 0
        and "hospitals/authority/ca.key" in built.out
        and "hospitals/server/ca.crt" in built.out
    )
    mark = built.out.split("SHA-256 fingerprint: ")[1].split()[0]
    assert len(mark.split(":")) == 32 and "--server fl.example.org:8443 --ca ca.crt" in built.out

    joined = fedblocks(
        *shlex.split("federation join a --server fl.example.org:8443 --ca hospitals/server/ca.crt")
    )
    assert joined.code == 0 and mark in joined.out
    (command,) = [
        line.strip() for line in joined.out.splitlines() if line.startswith("  fedblocks")
    ]
    assert command == "fedblocks federation enrol SERVER a.pub --client 0"

    words = command.replace("SERVER", "hospitals/server").replace("a.pub", "a/a.pub")
    enrolled = fedblocks(*shlex.split(words)[1:], "--examples", "1200")
    key = joined.out.split("this client's key: ")[1].split()[0]
    assert enrolled.code == 0 and key in enrolled.out
    (row,) = fedblocks("federation", "keys", "hospitals/server", "--json").json
    assert (row["name"], row["clients"], row["fingerprint"], row["examples"]) == (
        "a",
        "0",
        key,
        1200,
    )

    begun = fedblocks("federation", "rotate", "a")
    assert begun.code == 0 and "fedblocks federation enrol SERVER a.json" in begun.out
    taken = fedblocks("federation", "enrol", "hospitals/server", "a/a.json")
    assert taken.code == 0 and "--finish" in taken.out
    assert fedblocks("federation", "rotate", "a", "--finish", "--force").code == 0

    (tmp_path / "a" / "client.key").unlink()
    lost = fedblocks("federation", "rotate", "a")
    assert "fedblocks federation enrol SERVER a.pub --replace a" in lost.out
    assert (
        fedblocks("federation", "enrol", "hospitals/server", "a/a.pub", "--replace", "a").code == 0
    )

    renewed = fedblocks("federation", "renew", "hospitals/server", "--years", "2")
    assert (
        renewed.code == 0
        and "server.crt was good until" in renewed.out
        and "restart the server" in renewed.out
    )
    revoked = fedblocks("federation", "revoke", "hospitals/server", "a")
    assert revoked.code == 0 and "clients/revoked/a-" in revoked.out
    back = "fedblocks federation enrol hospitals/server a.pub --client 0"
    assert revoked.out.splitlines()[-1].endswith(f"and send a.pub; then: {back}")
    assert fedblocks("federation", "keys", "hospitals/server", "--json").json == []


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("keys nowhere", "name a folder that `fedblocks federation init` made"),
        ("rotate nowhere", "name a folder that `fedblocks federation join` made"),
        ("join a --server fl.example.org --ca ca.crt", "has no port"),
        ("init f --server http://x", "does not name a machine"),
        ("renew nowhere --new-key", "--new-key is for --authority"),
        ("enrol s x.json --client 1", "takes over the client numbers"),
    ],
)
def test_what_is_wrong_is_said_with_what_to_do(
    words: str, said: str, fedblocks: Any, tmp_path: Path
) -> None:
    done = fedblocks("federation", *shlex.split(words))
    assert done.code == 2 and said in done.err and "fix: " in done.err
    assert list(tmp_path.iterdir()) == []


def test_a_key_of_the_authority_may_lie_in_a_folder_of_its_own(
    fedblocks: Any, tmp_path: Path
) -> None:
    (tmp_path / "stick").mkdir()
    assert fedblocks("federation", "init", "f", "--server", "x.org", "--ca-key", "stick").code == 0
    assert (tmp_path / "stick" / "ca.key").exists() and not (tmp_path / "f" / "authority").exists()
    assert "say where it is: --ca-key" in fedblocks("federation", "renew", "f/server").err
    assert fedblocks("federation", "renew", "f/server", "--ca-key", "stick").code == 0


def test_every_way_to_come_back_after_a_revocation_names_the_command_that_works(
    fedblocks: Any, tmp_path: Path
) -> None:
    fedblocks("federation", "init", "f", "--server", "fl.example.org")
    fedblocks(
        *shlex.split("federation join a --server fl.example.org:8443 --ca f/server/ca.crt"),
        *shlex.split("--client 2 --client 3"),
    )
    numbers = ["--client", "2", "--client", "3"]
    fedblocks("federation", "enrol", "f/server", "a/a.pub", *numbers)
    fedblocks("federation", "revoke", "f/server", "a")
    fedblocks("federation", "rotate", "a")
    refused = fedblocks("federation", "enrol", "f/server", "a/a.json")
    again = fedblocks("federation", "enrol", "f/server", "a/a.pub", "--replace", "a")
    for done in (refused, again):
        assert done.code == 2 and "no key is enrolled as a: it was revoked" in done.err
        assert "then: fedblocks federation enrol f/server a.pub --client N" in done.err

    (tmp_path / "a" / "client.key").unlink()
    *_, lost, said, command = fedblocks("federation", "rotate", "a").out.splitlines()
    assert lost == "  fedblocks federation enrol SERVER a.pub --replace a"
    assert said == "if it was revoked:"
    assert command == "  fedblocks federation enrol SERVER a.pub --client 2 --client 3"
    words = command.replace("SERVER", "f/server").replace("a.pub", "a/a.pub")
    assert fedblocks(*shlex.split(words)[1:]).code == 0
    (row,) = fedblocks("federation", "keys", "f/server", "--json").json
    assert (row["name"], row["clients"]) == ("a", "2, 3")


def test_a_new_key_is_not_used_while_nobody_says_that_it_is_enrolled(
    fedblocks: Any, tmp_path: Path
) -> None:
    port = launch.free_port()  # where nothing answers
    fedblocks("federation", "init", "f", "--server", f"127.0.0.1:{port}")
    at = ["--server", f"127.0.0.1:{port}", "--ca", "f/server/ca.crt"]
    fedblocks("federation", "join", "a", *at)
    assert fedblocks("federation", "rotate", "a", "--force").code == 2
    begun, again = (fedblocks("federation", "rotate", "a").out for _ in range(2))
    assert begun.startswith("made a new key; its fingerprint: SHA256:")
    assert again.startswith("this is the new key of the last time; its fingerprint: SHA256:")
    assert begun.splitlines()[0].split()[-1] == again.splitlines()[0].split()[-1]
    assert "if the old key was revoked, a.json is refused" in begun

    old = (tmp_path / "a" / "client.key").read_bytes()
    refused = fedblocks("federation", "rotate", "a", "--finish")
    assert refused.code == 2 and f"127.0.0.1:{port} does not answer" in refused.err
    assert "fedblocks federation rotate a --finish --force" in refused.err
    assert (tmp_path / "a" / "client.key").read_bytes() == old

    forced = fedblocks("federation", "rotate", "a", "--finish", "--force")
    assert forced.code == 0 and (tmp_path / "a" / "a.json").exists()
    back = forced.out.splitlines()[-1].split("go back: ")[1]
    subprocess.run(back, shell=True, check=True, cwd=tmp_path)
    assert (tmp_path / "a" / "client.key").read_bytes() == old
    assert (tmp_path / "a" / "client.key.new").exists()
