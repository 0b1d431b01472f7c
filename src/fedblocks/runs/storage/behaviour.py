"""What a run's net and method compute, as its record has it: other code is not gone on with."""

from __future__ import annotations

import json

from fedblocks.config.model import ALL
from fedblocks.core.errors import UserError
from fedblocks.engines.behaviour import Behaviour, behaviour_of, behaviours_of, difference
from fedblocks.engines.round import Experiment
from fedblocks.runs.storage.folder import RunFolder
from fedblocks.runs.storage.store import RunStore

_META = "behaviour"


def behaviour_facts(store: RunStore, experiment: Experiment) -> dict[str, str]:
    """What to write down where nothing of it is on record yet."""
    if store.meta(_META) is not None:
        return {}
    behaviours = behaviours_of(experiment)
    return {_META: json.dumps(behaviours)} if behaviours else {}


def check_behaviour(folder: RunFolder, experiment: Experiment) -> None:
    """Refuse a net or a method that computes something else than those of the run."""
    recorded: dict[str, Behaviour] = json.loads(folder.store.meta(_META) or "{}")
    for group, before in recorded.items():
        method = experiment.methods.get(group)
        now = None if method is None else behaviour_of(experiment, group, before["client"])
        if method is None or now is None:
            continue
        name = str(experiment.data.names[before["client"]])
        if wrong := difference(before, now, method.net, name):
            whose = "" if group == ALL else f' of group "{group}"'
            raise UserError(
                f"the net or the method{whose} is not the one that {folder.path} was started with: "
                f"{wrong}",
                "bring the net and the method that the run was started with, or start a new run",
            )
