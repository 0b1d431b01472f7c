"""TLS for those who connect to a federation's server."""

from __future__ import annotations

import ssl
from pathlib import Path

from fedblocks.core.errors import UserError
from fedblocks.core.small_files import need_content

FIX = "bring ca.crt of the server's folder here"


def need_authority(folder: Path) -> bytes:
    """Return what is in a folder's `ca.crt`."""
    return need_content(folder / "ca.crt", FIX)


def trust_in(folder: Path) -> ssl.SSLContext:
    """Return TLS settings that accept what the authority of a folder's `ca.crt` signed, alone."""
    content = need_authority(folder)
    try:
        return ssl.create_default_context(cadata=content.decode("ascii"))
    except (ValueError, ssl.SSLError) as error:
        raise UserError(f"{folder / 'ca.crt'} is not a certificate", FIX) from error
