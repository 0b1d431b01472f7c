"""How much of the server the other side of a connection may use; the table `[limits]`
of server.toml changes it.
"""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, NonNegativeInt, PositiveFloat, PositiveInt

KIB, MIB, GIB = 2**10, 2**20, 2**30


class Limits(BaseModel):
    """Flower cuts arrays into objects of 5 MiB and sends each in a request, so that
    requests are small.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    request: PositiveInt = 8 * MIB  # bytes of one request's body
    in_flight: PositiveInt = 256 * MIB  # bytes of all bodies that are under way; more of them wait
    in_flight_each: PositiveInt = 64 * MIB  # of these, bytes of one client
    hour_each: PositiveInt = 32 * GIB  # bytes of answers that one client may send within an hour
    spare: NonNegativeInt = GIB  # bytes of the server's disk that answers of clients leave free
    connections: PositiveInt = 1024  # of clients that have shown their key
    connections_each: PositiveInt = 16  # of these, connections of one client
    # connections on which no key was shown yet; the oldest makes room for a new one
    strangers: PositiveInt = 256
    strangers_each: PositiveInt = 128  # of these, connections from one address
    handshake_seconds: PositiveFloat = 10.0  # until TLS stands
    # until a request's headers are complete, and between requests
    head_seconds: PositiveFloat = 20.0
    exchange_seconds: PositiveFloat = 300.0  # until a request is sent and answered
    # that a request waits for others to end before its client is told to try again
    wait_seconds: PositiveFloat = 20.0
