"""`fedblocks federation rotate | renew`: new keys and certificates in place of old ones."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedblocks.cli.keys import Server, key_file
from fedblocks.cli.output import say, stoppable

AuthorityKey = Annotated[
    Path | None,
    typer.Option(
        "--ca-key", metavar="PATH", help="Private key of the authority; default: ../authority."
    ),
]


def rotate(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Client folder.")],
    ends: Annotated[
        bool, typer.Option("--finish", help="Use the new key, if the server lets it in.")
    ] = False,
    force: Annotated[
        bool, typer.Option("--force", help="With --finish: do not ask the server.")
    ] = False,
) -> None:
    """Create a new key, and a request signed by the old one."""

    def action() -> None:
        from fedblocks.core.errors import UserError
        from fedblocks.flower.hosts import launch

        launch.need_flower()
        if force and not ends:
            raise UserError("--force is for --finish", "add it, or leave --force out")
        if ends:
            _finish(folder, force)
        else:
            _begin(folder)

    stoppable(action)


def _begin(folder: Path) -> None:
    from fedblocks.flower.keys import rotation

    was_begun = (folder / rotation.NEW).exists()
    fingerprint, request = rotation.begin(folder)
    if request is None:
        say(f"made a new key with the fingerprint {fingerprint}")
        for line in rotation.hand_in(folder):
            say(line)
        return
    what = "this is the new key of the last time;" if was_begun else "made a new key;"
    say(f"{what} its fingerprint: {fingerprint}")
    say(
        f"send {request} to the server's operator, who runs: fedblocks federation enrol "
        f"SERVER {request.name}"
    )
    say(
        f"then here: fedblocks federation rotate {folder} --finish (until then the old key is used)"
    )
    say(
        f"if the old key was revoked, {request.name} is refused: then remove "
        f"{folder / 'client.key'} and {folder / rotation.NEW}, and run this again"
    )


def _finish(folder: Path, force: bool) -> None:
    from fedblocks.flower.client.new_key import need_enrolled
    from fedblocks.flower.keys import rotation

    if not force:
        need_enrolled(folder)
    say(f"the key {rotation.finish(folder)} is used from now on; start the client again")
    say(f"the old one is {folder / rotation.OLD}; remove it when the client is connected")
    if force:
        say(f"if the server does not let the new one in, go back: {rotation.way_back(folder)}")
    else:
        rotation.request_file(folder).unlink(missing_ok=True)


def renew(
    server: Server,
    ca_key: AuthorityKey = None,
    years: Annotated[
        int, typer.Option("--years", min=1, max=10, help="Years that it is valid.")
    ] = 1,
    names: Annotated[
        list[str] | None,
        typer.Option(
            "--server", metavar="NAME", help="Another name of the server; may be repeated."
        ),
    ] = None,
    authority: Annotated[
        bool, typer.Option("--authority", help="Also renew the authority's certificate.")
    ] = False,
    new_key: Annotated[
        bool, typer.Option("--new-key", help="With --authority: a new key, as after a theft.")
    ] = False,
) -> None:
    """Renew the server's certificate before it expires."""

    def action() -> None:
        from fedblocks.core.errors import UserError
        from fedblocks.flower.hosts import launch

        launch.need_flower()
        from fedblocks.flower.keys import renewal

        if new_key and not authority:
            fix = "add it; a server's key is new with every renewal anyway"
            raise UserError("--new-key is for --authority", fix)
        secret = key_file(ca_key) or server.resolve().parent / "authority" / "ca.key"
        for line in renewal.renew(server, secret, names or [], years, authority, new_key):
            say(line)

    stoppable(action)
