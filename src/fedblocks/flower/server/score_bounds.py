"""How many labels a client may say that it was scored on, and with which loss: as others.

A mean over labels weighs a client's scores by this number, which is the client's own word. Its
training examples are bounded already (`enrolment`), and clients divide their data much alike, so
its labels are compared with those of the others per training example. A loss may be far from that
of the others, since models differ, but one beyond all measure would be the whole mean.
"""

from __future__ import annotations

from collections.abc import Mapping
from statistics import median_low

from fedblocks.flower.server.enrolment import FACTOR
from fedblocks.flower.wire.messages import Counts

ABSURD = 1e6  # times the median loss of a label, or of 1 where that is less


def find_excesses(counts: Mapping[int, Counts], sizes: Mapping[int, int]) -> dict[int, str]:
    """Return the clients that claim too many labels, each with what is wrong. `sizes`: training
    examples.
    """
    usual = max(1, median_low(sizes[client] for client in counts) if counts else 1)
    basis = {client: max(sizes[client], usual) for client in counts}
    scored = {client: numbers[1] for client, numbers in counts.items()}
    ratios = [scored[client] / basis[client] for client in counts if scored[client] > 0]
    if not ratios:
        return {}
    each = FACTOR * median_low(ratios)  # labels for each training example
    most = {client: round(each * basis[client]) for client in counts}
    return {
        client: f"it claims {scored[client]:g} labels, more than {most[client]}: "
        f"{FACTOR} times the median for its size"
        for client in counts
        if scored[client] > most[client]
    }


def find_absurd_losses(counts: Mapping[int, Counts]) -> dict[int, str]:
    """Return the clients whose mean loss of a label is beyond all measure, each with what it is."""
    losses = {client: own[2] / own[1] for client, own in counts.items() if own[1] > 0}
    if not losses:
        return {}
    most = ABSURD * max(1.0, median_low(abs(loss) for loss in losses.values()))
    return {
        client: f"a mean loss of {loss:.3g}, more than {most:.3g}"
        for client, loss in losses.items()
        if not abs(loss) <= most
    }
