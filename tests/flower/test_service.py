"""A server's run from its job to its folder, over a grid in this process: as a
simulated run, and after losses.
"""

from __future__ import annotations

import errno
import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'fedblocks[flower]'")


from fedblocks.config.model import Config
from fedblocks.core.errors import RunFolderError, UserError
from fedblocks.flower.client.app import client_app
from fedblocks.flower.client.prepare import sides_at
from fedblocks.flower.client.store import PersonalStore
from fedblocks.flower.hosts.federation import job_for, new_run
from fedblocks.flower.hosts.setup import node_name, set_up
from fedblocks.flower.server import service
from fedblocks.flower.server.jobs import add_job
from fedblocks.runs.result import load_run
from fedblocks.runs.run import REAL, run
from fedblocks.runs.storage import checkpoint
from fedblocks.runs.storage.folder import RunFolder

from .local_grid import LocalGrid, Meddle

CLIENTS = 6
TABLE: dict[str, Any] = {
    "rounds": 4,
    "threads": 1,
    "engine": "sequential",
    "device": "cpu",
    "data": {"name": "digits", "clients": CLIENTS, "split": [0.6, 0.2, 0.2]},
    "net": {"name": "mlp", "hidden": [8]},
    "method": {"name": "fedper", "batch_size": 16, "lr": 0.3},
    "evaluation": {"every": 2},
}
# weights decay, inputs are noisy
TRAINED: dict[str, Any] = {
    "optimizer": {"name": "sgd", "weight_decay": 0.01, "decay": "weights"},
    "augment": [{"name": "noise", "spread": 0.2}, "flip", {"name": "crop", "padding": 1}],
}


class Host:
    """A server's folder, clients' folders, and one run."""

    def __init__(self, base: Path, changes: dict[str, Any] | None = None) -> None:
        self.base, self.config = base, Config.of({**TABLE, **(changes or {})})
        held = {node_name(c): [c] for c in range(self.config.data.clients or 1)}
        shown = self.config.method.name == "pfedmb"
        set_up(
            base / "f",
            "127.0.0.1",
            held,
            insecure=True,
            data=self.config.resolved()["data"],
            pictures=shown,
        )
        self.path = new_run(self.config, base / "run", [])

    def serve(
        self, meddle: Meddle | None = None, nodes: Any = range(CLIENTS), **choices: Any
    ) -> None:
        wanted = {"kind": "train", "seconds": 120.0, "patience": 5.0, **choices}
        job = job_for(self.path, "f", **wanted)
        folder = lambda context: self.base / "f" / node_name(context.node_config["client"])
        sides_of = lambda context: sides_at(folder(context), job.spec)
        self.grid = LocalGrid(client_app(sides_of), nodes, meddle)
        self.server = self.base / "f" / "server"
        self.job = add_job(self.server, job).name
        service.serve(self.grid, self.server, self.job)

    def rows(self, query: str) -> list[dict[str, Any]]:
        with RunFolder.open(self.path) as folder:
            return folder.store.rows(query)


def scores(path: Path) -> dict[Any, float]:
    query = "SELECT round, part, view, client, correct, examples, loss FROM client_metrics"
    with RunFolder.open(path) as folder:
        by_key = {tuple(row.values())[:4]: row for row in folder.store.rows(query)}
        return {
            (*key, name): row[name]
            for key, row in by_key.items()
            for name in ("correct", "examples", "loss")
        }


def snapshots(path: Path) -> dict[Any, Any]:
    """What a report draws of personal models."""
    with RunFolder.open(path) as folder:
        rows = folder.store.rows("SELECT round, name, client, numbers FROM snapshots")
        return {
            (row["round"], row["name"], row["client"]): json.loads(row["numbers"]) for row in rows
        }


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"cohort": {"size": 3}},
        {"cohort": {"size": 3, "sampler": {"name": "by_size"}}},
        {"cohort": {"size": 2, "sampler": {"name": "trace", "rounds": [[0, 1, 2], [3, 4, 5]]}}},
        {"data": {**TABLE["data"], "unseen": 0.34}, "evaluation": {"every": 3, "local": True}},
        {"method": {"name": "pfedmb", "branches": 2, "batch_size": 16, "lr": 0.3}},
        {"method": {**TABLE["method"], "name": "pfedmb", **TRAINED}},
    ],
    ids=["everybody", "some", "by size", "by a trace", "unseen", "with pictures", "as trained"],
)
def test_a_run_folder_is_that_of_a_simulated_run(changes: dict[str, Any], tmp_path: Path) -> None:
    host = Host(tmp_path, changes)
    host.serve()
    run(host.config, tmp_path / "simulated")
    ours, theirs = load_run(host.path), load_run(tmp_path / "simulated")
    assert ours.status == theirs.status == "finished" and ours.rounds == theirs.rounds == 4
    assert scores(host.path) == pytest.approx(scores(tmp_path / "simulated"), abs=1e-9)
    assert (ours.bytes_down, ours.bytes_up) == (theirs.bytes_down, theirs.bytes_up)
    if changes.get("method"):
        assert snapshots(host.path) and snapshots(host.path) == snapshots(tmp_path / "simulated")
    else:
        assert not snapshots(host.path)  # clients show nothing unless their owners say so


def stop_after(rounds: int) -> Meddle:
    """The server is killed when the first upload of a later round arrives."""

    def meddle(node: int, answer: Any) -> Any:
        if answer.metadata.message_type == "train" and answer.metadata.group_id == str(rounds):
            raise SystemExit("killed")
        return answer

    return meddle


def test_a_server_goes_on_after_a_crash_and_loses_one_round_at_most(tmp_path: Path) -> None:
    host = Host(tmp_path)
    with pytest.raises(SystemExit):
        host.serve(stop_after(2))
    assert load_run(host.path).rounds == 2
    host.serve()
    run(host.config, tmp_path / "simulated")
    assert scores(host.path) == pytest.approx(scores(tmp_path / "simulated"), abs=1e-9)


def test_a_full_disk_of_the_server_ends_the_run_with_its_reason_and_it_goes_on_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    host, honest = Host(tmp_path), checkpoint._put_in_place

    def full(draft: Path, folder: Path) -> None:
        if host.path in folder.parents:  # clients have disks of their own
            raise OSError(errno.ENOSPC, "No space left on device")
        honest(draft, folder)

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "_put_in_place", full)
        with pytest.raises(RunFolderError, match="No space left on device"):
            host.serve()
    assert load_run(host.path).status == "failed"
    assert any(
        "No space left" in row["text"]
        for row in host.rows("SELECT text FROM notes WHERE level = 'warning'")
    )
    host.serve()
    run(host.config, tmp_path / "simulated")
    assert load_run(host.path).status == "finished"
    assert scores(host.path) == pytest.approx(scores(tmp_path / "simulated"), abs=1e-9)


def test_a_moved_run_folder_names_the_command_that_continues_the_run(tmp_path: Path) -> None:
    host = Host(tmp_path, {"rounds": 2})

    def move(node: int, answer: Any) -> Any:
        if answer.metadata.message_type == "train" and host.path.exists():
            host.path.rename(tmp_path / "elsewhere")
        return answer

    with pytest.raises(RunFolderError, match="was moved") as caught:
        host.serve(move)
    command = f"fedblocks federation run {host.path} --server {tmp_path / 'f' / 'server'}"
    assert f"move it back, then: {command};" in caught.value.fix


def test_more_clients_are_asked_than_needed_and_the_slow_ones_not_waited_for(
    tmp_path: Path,
) -> None:
    silent: Meddle = lambda node, answer: (
        None if node == 105 and answer.metadata.group_id in ("0", "1") else answer
    )
    host = Host(tmp_path, {"cohort": {"size": 4}, "rounds": 2, "evaluation": {"every": 50}})
    host.serve(silent, more=1.5, minimum=0.5, seconds=250.0)  # nobody waits for so long
    assert load_run(host.path).rounds == 2
    assert [row["clients"] for row in host.rows("SELECT clients FROM rounds")] == [6, 6]
    late = host.rows("SELECT DISTINCT reason FROM refusals")
    assert late == [{"reason": "no-answer"}]


def test_a_round_below_its_minimum_is_told_and_tried_again_with_those_who_are_there(
    tmp_path: Path,
) -> None:
    host = Host(tmp_path, {"rounds": 1})
    host.serve(nodes=range(4), minimum=0.6, patience=0.5)
    reasons = host.rows("SELECT client, reason FROM refusals")
    assert reasons == [{"client": c, "reason": "unreachable"} for c in (4, 5)]
    with pytest.raises(UserError, match="4 of 6 clients connected"):
        Host(tmp_path / "b", {"rounds": 1}).serve(nodes=range(4), minimum=1.0, patience=0.5)


def test_a_new_client_gets_a_model_and_the_federation_stays_as_it_is(tmp_path: Path) -> None:
    host = Host(tmp_path, {"rounds": 2, "data": {**TABLE["data"], "unseen": 0.17}})
    host.serve()
    before = load_run(host.path).state()
    unseen = (
        {*range(CLIENTS)}
        - {row["client"] for row in host.rows("SELECT DISTINCT client FROM traffic")}
    ).pop()
    host.serve(kind="adapt", clients=(unseen,))
    after = load_run(host.path).state()
    assert after.round == before.round == 2
    assert all(
        v.equal(after.server[b][k]) for b, block in before.server.items() for k, v in block.items()
    )
    name = host.rows(f"SELECT value FROM meta WHERE key = '{REAL}'")[0]["value"]
    model = PersonalStore.of(
        tmp_path / "f" / node_name(unseen) / "state", "f", name, unseen
    ).model()
    assert set(model) == {"body", "head"} and all(
        v.isfinite().all() for b in model.values() for v in b.values()
    )
    notes = [row["text"] for row in host.rows("SELECT text FROM notes")]
    assert any(
        note.startswith(f"client {unseen} has its model: test/personal") for note in notes
    ), notes


def test_data_that_do_not_fit_are_told_to_the_server(tmp_path: Path) -> None:
    host = Host(tmp_path, {"rounds": 1})
    own = tmp_path / "f" / node_name(5) / "client.toml"
    own.write_text(own.read_text().replace('name = "digits"', 'name = "no-such-loader"'))
    host.serve(minimum=0.5, patience=0.5)
    notes = [row["text"] for row in host.rows("SELECT text FROM notes")]
    assert any(
        "a node was refused: client-error" in note and "its log says why" in note for note in notes
    ), notes
