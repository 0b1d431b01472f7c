"""Several blocks as the tensors of one net."""

from __future__ import annotations

from collections.abc import Sequence

from fedblocks.core.errors import NetError
from fedblocks.core.parts import Params


def join(*copies: Params) -> Params:
    """One net's tensors out of several blocks; two of one name are refused."""
    whole: Params = {}
    for copy in copies:
        whole |= copy
    if len(whole) < sum(map(len, copies)):
        _refuse_two(copies)
    return whole


def _refuse_two(copies: Sequence[Params]) -> None:
    """Refuse two tensors of one name, of which one would be lost."""
    known: Params = {}
    for copy in copies:
        for name, value in copy.items():
            if known.setdefault(name, value) is not value:
                raise NetError(
                    f'two of the blocks to be joined have a tensor "{name}", and one would be lost',
                    "join the blocks that `predict` reads; a personal model as one net is "
                    "model.merged()",
                )
