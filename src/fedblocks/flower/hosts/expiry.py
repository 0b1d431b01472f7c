"""A server's certificate that expires while the server runs: nobody can connect to it any more, and
everybody is to hear why.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from fedblocks.core.errors import UserError
from fedblocks.flower.hosts.folders import ServerHost

if TYPE_CHECKING:
    from cryptography.x509 import Certificate

SAID = "certificate has expired"  # by OpenSSL, of a server that answers


class ExpiredError(UserError):
    """The server runs with a certificate that has expired."""


def expiry_error(folder: Path) -> ExpiredError:
    """Return the error for a server that answers with a certificate that has expired; the file may
    have been renewed meanwhile.
    """
    from fedblocks.flower.keys.certificate_checks import RENEW, has_expired, load_certificate

    again = f"stop the server and start it again: fedblocks federation server {folder}"
    file = folder / "server.crt"
    if has_expired(load_certificate(file)):
        message = f"{file} has expired: renew it and restart"
        return ExpiredError(message, f"{RENEW} {folder}; then {again}")
    message = f"the server of {folder} still uses a certificate that has expired, not {file.name}"
    return ExpiredError(message, again)


@dataclass(eq=False)
class CertificateWatch:
    """Tells once that the certificate has expired which a running server read when it started."""

    folder: Path
    tell: Callable[[str], None]
    _certificate: Certificate | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        if not ServerHost.read(self.folder).insecure:
            from fedblocks.flower.keys.certificate_checks import load_certificate

            self._certificate = load_certificate(self.folder / "server.crt")

    def look(self) -> None:
        if self._certificate is None:
            return
        from fedblocks.flower.keys.certificate_checks import has_expired

        if has_expired(self._certificate):
            self._certificate = None
            error = expiry_error(self.folder)
            self.tell(f"warning: {error.message}; nobody can connect until then; {error.fix}")
