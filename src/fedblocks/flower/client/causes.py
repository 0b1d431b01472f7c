"""Why a client cannot reach its server: the cause in a sentence, and what to do about it."""

from __future__ import annotations

import json
import re
import socket
import ssl
import time
from collections.abc import Iterator
from datetime import datetime
from email.utils import parsedate_to_datetime

import httpx

from fedblocks.core.errors import UserError

# seconds by which clocks may differ; Flower believes no signature from further ahead
TOLERANCE = 5.0
EXPIRED, NOT_YET = 10, 9  # OpenSSL's numbers for what is wrong with a certificate
NAMES = (62, 64)  # it is for another name, or another address
BUSY = (500, 502, 503, 504)
ERRNO = re.compile(r"^\[Errno -?[0-9]+\] ")  # means nothing to people
# what the gateway says with them
REASONS = {
    "disk": "its disk is nearly full",
    "quota": "this client has sent all that it may send within an hour",
    "connections": "there are too many connections",
}


def cause_of(error: Exception, server: str) -> UserError:
    """Say in words why a request failed."""
    if isinstance(error, httpx.HTTPStatusError):
        return _cause_of_answer(error.response, server)
    if not isinstance(error, httpx.HTTPError):  # an answer came, and is none
        fix = (
            "install the same version of fedblocks and Flower here and there, and see that "
            "client.toml names its port"
        )
        return UserError(
            f"{server} gives an answer that this client does not understand: {_words(error)}", fix
        )
    for inner in _chain(error):
        if isinstance(inner, ssl.SSLCertVerificationError):
            return _certificate(inner, server)
        if isinstance(inner, ssl.SSLError):
            fix = (
                "see that client.toml names the port of a fedblocks server, and one that is "
                "not insecure"
            )
            return UserError(f"{server} does not speak TLS: {inner.reason or inner}", fix)
        if isinstance(inner, socket.gaierror):
            return UserError(
                f"the name of {server} is not known here",
                "see the name in client.toml, and this network",
            )
    fix = (
        "start it, or see that client.toml names the right address and that no firewall stands "
        "between"
    )
    return UserError(f"{server} does not answer ({_words(error)})", fix)


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _words(error: Exception) -> str:
    return ERRNO.sub("", str(error))[:120] or type(error).__name__


def _certificate(error: ssl.SSLCertVerificationError, server: str) -> UserError:
    match error.verify_code:
        case code if code == EXPIRED:
            return UserError(
                "the server's certificate has expired", "have it renewed on the server's machine"
            )
        case code if code == NOT_YET:
            fix = "set this machine's clock"
            return UserError(
                "the server's certificate is not valid yet, by the clock of this machine", fix
            )
        case code if code in NAMES:
            fix = "let client.toml name the server as `fedblocks federation init --server` did"
            return UserError(f"the server's certificate is not for {server}", fix)
        case _:
            fix = (
                "bring ca.crt of the server's folder here again, and see that client.toml "
                "names the right server"
            )
            text = "the server's certificate was not signed by the authority that this client knows"
            return UserError(f"{text} ({error.verify_message})", fix)


def _cause_of_answer(response: httpx.Response, server: str) -> UserError:
    from flwr.supercore.runtime_version_compatibility import (
        get_runtime_version_incompatibility_exit_message,
    )

    if mismatch := get_runtime_version_incompatibility_exit_message(response.text):
        fix = "install the same version of fedblocks, and with it of Flower, here and on the server"
        return UserError(
            f"the server has another version of Flower: {mismatch.splitlines()[0]}", fix
        )
    ahead = _ahead(response)
    if response.status_code == 401 and abs(ahead) > TOLERANCE:
        way = "ahead of" if ahead > 0 else "behind"
        text = f"the clock of this machine is {abs(ahead):.0f} s {way} the server's"
        return UserError(text, "set it, best by a time service such as systemd-timesyncd or chrony")
    if response.status_code == 412:
        text = "the server says that a client with this key is connected already"
        fix = (
            "nothing, if it was just enrolled, or ended less than a minute ago; else another "
            "machine uses a copy of this key: make one for each (fedblocks federation join)"
        )
        return UserError(text, fix)
    if response.status_code in (401, 403, 404):
        fix = (
            "have its public key enrolled on the server's machine; this client tries again "
            "until then"
        )
        return UserError(
            "the server does not know the key of this client: not enrolled yet, or revoked", fix
        )
    if response.status_code in BUSY:
        fix = "nothing, if it is just starting; else see the server's log"
        why = said_reason(response) or f"it answers {response.status_code}"
        return UserError(f"{server} cannot serve at the moment ({why})", fix)
    return UserError(
        f"{server} answers {response.status_code}",
        "see that this is the port of a fedblocks server",
    )


def said_reason(response: httpx.Response | None) -> str:
    """Return in words why a gateway does not serve; empty if it does not say."""
    try:
        return REASONS.get(json.loads(response.text)["reason"], "") if response is not None else ""
    except (ValueError, KeyError, TypeError):
        return ""


def _ahead(response: httpx.Response) -> float:
    """Return the seconds that the clock here is ahead of the server's."""
    try:
        content = json.loads(response.text)
        if content["reason"] == "clock":
            return time.time() - _seconds(content["server_time"])
    except (ValueError, KeyError, TypeError):
        pass
    try:
        return time.time() - parsedate_to_datetime(response.headers["date"]).timestamp()
    except (KeyError, ValueError):
        return 0.0


def _seconds(time_sent: object) -> float:
    """Read a time that was sent as a number of seconds or as a date."""
    if isinstance(time_sent, str):
        return datetime.fromisoformat(time_sent).timestamp()
    return float(str(time_sent))
