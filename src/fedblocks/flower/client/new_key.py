"""Whether a client's server lets a key in, before the client goes over to it."""

from __future__ import annotations

from pathlib import Path

import httpx

from fedblocks.core.errors import UserError
from fedblocks.flower.client.causes import cause_of
from fedblocks.flower.client.fleet import Fleet
from fedblocks.flower.hosts.folders import ClientHost
from fedblocks.flower.keys.rotation import NEW, need_new_key, request_file

CONNECTED = 412  # what Flower answers a key that it knows and that is in use
STRANGER = (401, 403, 404)


def need_enrolled(folder: Path) -> None:
    """Refuse to go over to a new key unless the server lets it in."""
    need_new_key(folder)
    host = ClientHost.read(folder)
    try:
        fleet = Fleet(host, folder, NEW)
        fleet.leave(fleet.enter(None))
    except httpx.HTTPStatusError as error:
        if error.response.status_code in STRANGER:
            raise _not_enrolled(folder) from error
        if error.response.status_code != CONNECTED:
            raise _not_asked(folder, cause_of(error, host.server)) from error
    except httpx.HTTPError as error:
        raise _not_asked(folder, cause_of(error, host.server)) from error


def _not_enrolled(folder: Path) -> UserError:
    return UserError(
        f"{folder} keeps its old key: the server does not let the new one in",
        f"send {request_file(folder)} to the server's operator, who enrols it, then run this again",
    )


def _not_asked(folder: Path, cause: UserError) -> UserError:
    return UserError(
        f"{folder} keeps its old key, for nobody says whether the new one is enrolled: "
        f"{cause.message}",
        f"{cause.fix}; or, if the operator says that it is enrolled: fedblocks federation rotate "
        f"{folder} --finish --force",
    )
