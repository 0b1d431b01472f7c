"""What ranks refuse: one message, said by the first, with the same end at all of them."""

from __future__ import annotations

import json

from .players import WRONG
from .processes import PLAYERS, run_ranks

REFUSALS = {  # what is wrong -> the message at the first of three ranks, and what to do
    "few clients": ("3 ranks, but only 2 clients to train on", "start at most 2: torchrun "),
    "other options": (
        "rank 2 has another configuration than rank 0: method.lr is 0.2, not 0.1",
        "start all ranks with the same command and the same files",
    ),
    "other rounds": (
        "rank 1 has another configuration than rank 0: rounds is 7, not 6",
        "start all ranks with the same command and the same files",
    ),
    "processes": (
        "config: engine: ranks are processes already, each with an engine of its own",
        'use engine = "auto", "sequential" or "vectorised"',
    ),
    "no data at one": ('data.name: there is no data set "none"', ""),
    "compare": (
        "compare is work for one process, and this is one of several ranks",
        "start it without torchrun",
    ),
    "other code": (
        "rank 1 has another torch than rank 0: 0.1, not ",
        "install the same version of everything on all machines",
    ),
}


def test_bad_input_is_refused_once_and_the_ranks_go_on_together(tmp_path) -> None:
    ends = run_ranks(3, str(PLAYERS), WRONG, str(tmp_path), seconds=200)
    assert [code for code, _, _ in ends] == [0, 0, 0], ends
    lines = [output.splitlines() for _, output, _ in ends]
    for rank, own in enumerate(lines):
        said = {what: rest for what, *rest in (json.loads(line) for line in own[:-1])}
        assert own[-1] == "status finished" and said.keys() == REFUSALS.keys()
        for what, (message, fix) in REFUSALS.items():
            text, advice, silent = said[what]
            assert message in text and advice.startswith(fix), (what, text, advice)
            assert silent == (rank > 0), (what, rank)
