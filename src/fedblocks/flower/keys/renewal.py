"""New certificates for a server: before the old ones expire, or after a theft."""

from __future__ import annotations

from pathlib import Path

from fedblocks.flower.hosts.folders import ServerHost, address_of
from fedblocks.flower.keys import certificate_checks as checks
from fedblocks.flower.keys import certificates as pki
from fedblocks.flower.keys.private_files import locked


def renew(
    server: Path, ca_key: Path, names: list[str], years: int, authority: bool, new_key: bool
) -> list[str]:
    """Make a new server certificate for the same names and more; return lines for the operator."""
    more = [address_of(name, 1)[0] for name in names]
    host = ServerHost.read(server)
    with locked(server):
        old = checks.load_certificate(server / "server.crt")
        lines = _renew_authority(server, ca_key, host.federation, new_key) if authority else []
        pki.make_server(server, [host.address, *checks.names_of(old), *more], ca_key, years)
        new = checks.load_certificate(server / "server.crt")
    lines.append(f"server.crt was {checks.end_of(old)}, and is {checks.term_of(new)} now")
    lines.append(f"it is for {', '.join(checks.names_of(new))}")
    return [*lines, f"restart the server to use it: fedblocks federation server {server}"]


def _renew_authority(server: Path, ca_key: Path, federation: str, new_key: bool) -> list[str]:
    if not new_key:
        pki.renew_authority(server, ca_key)
        new = checks.load_authority(server / "ca.crt")
        return [
            f"ca.crt is {checks.term_of(new)} now, with the same key",
            "clients go on with the ca.crt that they have, until its end; bring them the new one "
            "before that",
        ]
    pki.replace_authority(server, federation, ca_key)
    new = checks.load_authority(server / "ca.crt")
    fingerprint = checks.fingerprint_of(new)
    return [
        f"ca.crt is that of a new authority now; its SHA-256 fingerprint: {fingerprint}",
        "no client believes this server until its ca.crt is the new one, and none believes the old "
        "authority then",
    ]
