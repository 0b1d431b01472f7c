"""The machines of a federation at work: a server or a client that runs until it is told to stop."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from fedblocks.core.errors import RunFolderError, UserError
from fedblocks.flower import launch, running
from fedblocks.flower.crew import Crew
from fedblocks.flower.federation import ended_politely, order_for
from fedblocks.flower.hosts import ClientHost, ServerHost
from fedblocks.flower.key_watch import KeyWatch, check_client, check_server
from fedblocks.flower.terms import data_of
from fedblocks.runs.folder import RunFolder

Tell = Callable[[str], None]
SLOW = 30.0  # seconds after which a client says that its server does not answer
FORGET = 75.0  # seconds after which Flower's server has noticed that a client was killed
REFUSED = "Failed to activate"  # what Flower's client says then
RETRY = 4.0  # seconds until a client that was not let in tries again
TEND = 1.0  # seconds between two looks at the processes


def host_server(folder: Path, tell: Tell) -> None:
    """Run the server of a federation until Ctrl-C or SIGTERM; a run that it was killed in is taken up."""
    launch.need_flower()
    folder = folder.resolve()
    variables = {**launch.environment(folder), launch.SERVER: str(folder)}
    with ended_politely(), Crew(folder / "logs", variables) as crew:
        try:
            check_server(folder, tell)
            keys = KeyWatch(folder, tell)  # before the keys are read: no change is missed
            host = running.start_server(crew, folder, tell)
            tell(f"ready: {len(host.clients)} machines with keys may connect to {host.address}:{host.port}")
            while True:
                keys.follow(crew)
                for name in crew.revive():
                    tell(f"{name} had ended and was started again")
                running.take_up(folder, tell)
                time.sleep(TEND)
        except KeyboardInterrupt:
            tell("stopping")


def host_client(folder: Path, tell: Tell) -> None:
    """Run a machine with clients until Ctrl-C or SIGTERM; while the server is away it tries again."""
    launch.need_flower()
    folder = folder.resolve()
    host = ClientHost.read(folder)
    check_client(folder)
    data = data_of(host, folder)
    rows = sum(int(rows.sizes.sum()) for rows in data.parts.values())
    tell(f"client {', '.join(map(str, host.clients))}: {rows} examples, which stay here")
    with ended_politely(), Crew(folder / "logs", {}) as crew:
        try:
            running.start_client(crew, folder)
            tell(f"connecting to {host.server}")
            _wait_for_server(crew, host, tell)
            while True:
                for name in crew.revive():
                    tell(f"{name} had ended and was started again")
                time.sleep(TEND)
        except KeyboardInterrupt:
            tell("stopping")


def _wait_for_server(crew: Crew, host: ClientHost, tell: Tell) -> None:
    """Until the server has let this client in; say so if that takes long."""
    before, began, told = len(_said(crew)), time.monotonic(), set[str]()

    def tell_once(text: str) -> None:
        if text not in told:
            tell(text)
        told.add(text)

    while "SuperNode ID" not in (said := _said(crew)[before:]):
        waited = time.monotonic() - began
        if REFUSED in said and waited < FORGET:  # Flower does not say which of the two it is
            tell_once("not let in: its key is not enrolled, or it was killed a moment ago; trying again for a minute")
            time.sleep(RETRY)
            crew.revive()
        else:
            check_admission(crew, before)
        if REFUSED not in said and waited > SLOW:
            tell_once(f"{host.server} does not answer yet; trying again until it does")
        time.sleep(TEND)
    crew.restarts = 0
    tell("connected; waiting for what the server asks for")


def check_admission(crew: Crew, since: int = 0) -> None:
    """Say so if server and client do not trust each other; Flower's program ends then."""
    if crew.running["supernode"].poll() is not None:
        said = _said(crew)[since:]
        if REFUSED in said:
            fix = "see that its public key is in the server's folder, in clients/, and that server.toml names it"
            raise UserError("the server does not know the key of this client", fix)
        if "CERTIFICATE_VERIFY_FAILED" in said:
            fix = "bring ca.crt of the server's folder here again, and see that client.toml names the right server"
            raise UserError("the server's certificate was not signed by the authority that this client knows", fix)
    crew.check()


def _said(crew: Crew) -> str:
    return crew.log("supernode").read_text(errors="replace")


def status_of(folder: Path) -> list[dict[str, object]]:
    """The machines that are enrolled, and the last run."""
    launch.need_flower()
    host = ServerHost.read(folder)
    nodes = launch.ask(folder, "supernode", "list").get("nodes", [])
    found: list[dict[str, object]] = [
        {"what": "node", "name": str(node.get("node-id")), "status": node.get("status")} for node in nodes
    ]
    told = running.last_order(folder)
    if told is not None:
        with RunFolder.open(Path(told["folder"])) as run:
            done = run.store.last_round() or 0
            found.append({"what": "run", "name": told["folder"], "status": f"{run.status}, {done} rounds"})
    own: dict[str, object] = {"what": "federation", "name": host.federation, "status": f"{host.address}:{host.port}"}
    return [own, *_certificates(host, folder), *found]


def _certificates(host: ServerHost, folder: Path) -> list[dict[str, object]]:
    """How long the server's certificate and its authority's are good for."""
    if host.insecure:
        return []
    from fedblocks.flower import pki

    found = {name: pki.load_certificate(folder / name) for name in ("server.crt", "ca.crt")}
    return [{"what": "certificate", "name": name, "status": pki.term_of(own)} for name, own in found.items()]


def stop_run(folder: Path) -> str:
    """End the run that is going on; what it has stored stays, and it can be gone on with."""
    launch.need_flower()
    told = running.last_order(folder)
    if told is None:
        raise UserError("the server was not told to do anything", "start with: fedblocks federation run CONFIG")
    launch.ask(folder, "stop", told["run-id"])
    with RunFolder.open(Path(told["folder"])) as run:
        if run.store.meta("status") == "running":
            run.set_status("interrupted")
    return str(told["folder"])


def adapt(server: Path, path: Path, clients: list[int], tell: Tell, seconds: float, patience: float) -> None:
    """Give clients that never took part their models from a trained run, which stays as it is."""
    launch.need_flower()
    host = ServerHost.read(server)
    running.enrol(host, server, tell)
    path = path.resolve()
    with RunFolder.open(path) as folder:
        if folder.store.last_round() is None:
            raise RunFolderError(f"{path} has no rounds yet", "train first")
        before = max((row["rowid"] for row in folder.store.rows("SELECT rowid FROM notes")), default=0)
    order = order_for(path, host.federation, kind="adapt", clients=clients, seconds=seconds, patience=patience)
    number = running.submit(server, order)
    while not (said := running.going_on({"run-id": number}, server)).startswith("finished"):
        time.sleep(TEND)
    with RunFolder.open(path) as folder:
        for row in folder.store.rows("SELECT text FROM notes WHERE rowid > ? ORDER BY rowid", before):
            tell(row["text"])
    if "completed" not in said:
        raise UserError(f"no models were given: {said}", f"see {server / 'logs' / 'superexec.log'}")
