"""Reasons for which an answer of a client is not used, by what they mean for its round."""

from __future__ import annotations

# reasons that a client may give for not doing what it was asked
FROM_CLIENTS = {
    "lost-state",
    "lost-download",
    "plan-mismatch",
    "frozen-mismatch",
    "wrong-run",
    "wrong-client",
    "not-finite",
    "client-error",
    "envelope",
    "names",
    "dtype",
    "shape",
    "not-allowed",
}
# nothing shows that a client refused for such a reason got what it was sent
NOT_REACHED = {"unreachable", "no-answer", "bad-tag"}
# such a message is ignored, its client is not refused
HARMLESS = {"stale", "replayed", "duplicate", "unknown-client"}
