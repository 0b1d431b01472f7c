"""`fedblocks federation init | join | enrol | revoke | keys`: who belongs to a federation."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedblocks.cli.output import AsJson, say, show_json, show_table, stoppable

Server = Annotated[Path, typer.Argument(metavar="SERVER", help="Server folder, created by `init`.")]
Numbers = Annotated[
    list[int] | None, typer.Option("--client", min=0, help="Number of a client; may be repeated.")
]


def init(
    folder: Annotated[
        Path, typer.Argument(metavar="FOLDER", help="Folder in which to create the server folder.")
    ],
    address: Annotated[
        str,
        typer.Option("--server", metavar="NAME[:PORT]", help="Address that clients connect to."),
    ],
    ca_key: Annotated[
        Path | None,
        typer.Option("--ca-key", metavar="PATH", help="File for the authority's private key."),
    ] = None,
) -> None:
    """Create a server folder with an authority and a certificate."""

    def action() -> None:
        from fedblocks.flower.hosts import launch

        launch.need_flower()
        from fedblocks.flower.hosts.folders import PORT, address_of
        from fedblocks.flower.hosts.setup import make_server_folder
        from fedblocks.flower.keys import certificate_checks as checks

        machine, port = address_of(address, PORT)
        secret = make_server_folder(folder, machine, port, ca_key=key_file(ca_key))
        server = folder / "server"
        authority = checks.load_authority(server / "ca.crt")
        own = checks.load_certificate(server / "server.crt")
        say(f"made {server}; its certificate for {machine} is {checks.term_of(own)}")
        say(
            f"the authority's private key: {secret}; the server runs without it, so keep it "
            f"elsewhere"
        )
        say(f"clients need one file, which is public: {server / 'ca.crt'}")
        say(f"its SHA-256 fingerprint: {checks.fingerprint_of(authority)}")
        say(f"next: fedblocks federation server {server}")
        say(
            f"on a client's machine: fedblocks federation join FOLDER --server {machine}:{port} "
            f"--ca ca.crt"
        )

    stoppable(action)


def join(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Client folder to create.")],
    server: Annotated[
        str, typer.Option("--server", metavar="NAME:PORT", help="Address of the server.")
    ],
    ca: Annotated[Path, typer.Option("--ca", metavar="FILE", help="ca.crt of the server folder.")],
    name: Annotated[
        str | None, typer.Option("--name", help="Name of the key; default: the folder's name.")
    ] = None,
    numbers: Numbers = None,
) -> None:
    """Create a client folder and a key, on the client's machine."""

    def action() -> None:
        from fedblocks.flower.hosts import launch, setup

        launch.need_flower()
        own_name = name or folder.resolve().name
        held = numbers or [0]
        setup.join(folder, server, ca, own_name, held)
        _show_joined(folder, own_name, held)
        say(
            f"next: set [data] in {folder / 'client.toml'}, then: fedblocks federation client "
            f"{folder}"
        )

    stoppable(action)


def _show_joined(folder: Path, name: str, numbers: list[int]) -> None:
    """What both sides compare, and what the operator of the server does."""
    from fedblocks.flower.keys import certificate_checks as checks
    from fedblocks.flower.keys import public_keys as keys

    public = folder / f"{name}.pub"
    authority = checks.load_authority(folder / "ca.crt")
    key = keys.read_public(keys.content_of(public), public)
    say(f"made {folder}; client.key is this client's own and stays here")
    say(f"fingerprint of the authority in ca.crt: {checks.fingerprint_of(authority)}")
    say(f"fingerprint of this client's key: {keys.fingerprint(key)}")
    say("compare both with the server's operator by telephone or in person")
    say(f"send {public} to the operator, who runs:")
    clients = " ".join(f"--client {number}" for number in sorted(numbers))
    say(f"  fedblocks federation enrol SERVER {public.name} {clients}")
    say("if the operator gives another number, write it into client.toml (clients)")


def enrol(
    server: Server,
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="NAME.pub of `join`, or NAME.json of `rotate`.")
    ],
    numbers: Numbers = None,
    examples: Annotated[
        int | None,
        typer.Option("--examples", min=1, help="Number of training examples of the client."),
    ] = None,
    replace: Annotated[
        str | None,
        typer.Option(
            "--replace", metavar="NAME", help="Name of a lost key, which this one replaces."
        ),
    ] = None,
    move: Annotated[
        bool, typer.Option("--move", help="Give an enrolled key other client numbers.")
    ] = False,
) -> None:
    """Enrol a client by its public key; the server may be running."""

    def action() -> None:
        from fedblocks.core.errors import UserError
        from fedblocks.flower.hosts import launch

        launch.need_flower()
        from fedblocks.flower.keys import key_table as registry

        rotates = file.suffix == ".json"
        if (rotates or replace) and (numbers or examples):
            wrong = "a new key takes over the client numbers and examples of the old one"
            fix = "leave --client and --examples out; to change them, enrol NAME.pub with --move"
            raise UserError(wrong, fix)
        if replace:
            name = registry.replace(server, replace, file)
        elif rotates:
            name = registry.rotate(server, file)
        else:
            name = registry.enrol(server, file, numbers or [], examples, move=move)
        row = next(row for row in registry.table(server) if row["name"] == name)
        say(
            f"enrolled {name} for client {row['clients']}; the fingerprint of its key: "
            f"{row['fingerprint']}"
        )
        if rotates:
            say(
                "the old key is no longer let in; the client runs: fedblocks federation rotate "
                "FOLDER --finish"
            )
        elif replace:
            say("the old key is no longer let in; the client is started again with its new one")
        _tell_running(server)

    stoppable(action)


def revoke(
    server: Server,
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the key; `keys` lists all.")],
) -> None:
    """Revoke a client's key at once; it can never be enrolled again."""

    def action() -> None:
        from fedblocks.flower.hosts import launch

        launch.need_flower()
        from fedblocks.flower.hosts.folders import ServerHost
        from fedblocks.flower.keys import key_table as registry

        held = ServerHost.read(server).clients.get(name, ())
        say(f"revoked {name}; its public key is kept as {registry.revoke(server, name)}")
        _tell_running(server)
        say(registry.come_back(server, name, " ".join(f"--client {n}" for n in held)))

    stoppable(action)


def _tell_running(server: Path) -> None:
    """A server that is running is told at once."""
    from fedblocks.flower.hosts import launch, running
    from fedblocks.flower.hosts.folders import ServerHost

    folder = server.resolve()
    host = ServerHost.read(folder)
    if launch.healthy(host, folder):
        running.enrol(host, folder, say)
        say("the server, which is running, knows it")


def table(server: Server, as_json: AsJson = False) -> None:
    """List the enrolled keys."""

    def action() -> None:
        from fedblocks.flower.hosts import launch

        launch.need_flower()
        from fedblocks.flower.keys import key_table as registry

        rows = registry.table(server)
        headings = {"name": "name", "clients": "clients", "fingerprint": "fingerprint"}
        if as_json:
            show_json(rows)
        else:
            show_table({**headings, "examples": "examples", "since": "enrolled"}, rows)

    stoppable(action)


def key_file(path: Path | None) -> Path | None:
    """The file that an option names by itself or by its folder."""
    return path / "ca.key" if path is not None and path.is_dir() else path
