"""Every method on several ranks ends where one process ends, as does every row of its record."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedblocks.testing import EXAMPLES

from .players import play
from .processes import play_on_ranks, unlike

# plain averages, branches and weights, a pool on request, private copies, a first round that needs
# single uploads, and what is concluded from weights alone
SIX = ("fedavg", "pfedmb", "fedmn", "ditto", "ifca", "scaffold")
CLOSE = 1e-6


def differences_of(
    names: tuple[str, ...], counts: tuple[int, ...], engine: str, precision: str, folder: Path
) -> dict[str, list[str]]:
    """Method and number of ranks -> where its run differs from that of one process."""
    alone = {name: folder / "alone" / name for name in names}
    for name, path in alone.items():
        play(name, path, engine, precision)
    differ: dict[str, list[str]] = {}
    for count in counts:
        outs = {name: folder / str(count) / name for name in names}
        plan = [
            {"name": name, "out": str(out), "engine": engine, "precision": precision}
            for name, out in outs.items()
        ]
        play_on_ranks(count, plan, folder)
        for name in names:
            found = unlike(outs[name], alone[name], CLOSE)
            differ |= {f"{name} on {count} ranks": found} if found else {}
    return differ


def test_six_methods_on_two_and_four_ranks_end_where_one_process_ends(tmp_path) -> None:
    assert differences_of(SIX, (2, 4), "sequential", "double", tmp_path) == {}


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("precision", ["double", "single"])
@pytest.mark.parametrize("engine", ["sequential", "vectorised"])
def test_all_methods_on_two_and_four_ranks_end_where_one_process_ends(
    engine, precision, tmp_path
) -> None:
    assert differences_of(tuple(EXAMPLES), (2, 4), engine, precision, tmp_path) == {}
