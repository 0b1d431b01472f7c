"""What was meant by the name of an option that does not exist."""

from __future__ import annotations

from collections.abc import Collection

from fedblocks.core.errors import nearest

_SYNONYMS = {  # what other libraries call an option
    "learning_rate": "lr",
    "local_learning_rate": "lr",
    "local_lr": "lr",
    "local_epochs": "epochs",
    "local_epoch": "epochs",
    "batch": "batch_size",
    "local_batch_size": "batch_size",
    "mu": "strength",
    "lamda": "strength",
}
_OF_OPTIMIZERS = {  # what other libraries give to a method, here to its optimizer
    "momentum": "SGD",
    "nesterov": "SGD",
    "weight_decay": "SGD",
    "betas": "Adam",
    "eps": "Adam",
}


def hint_for(name: str, options: Collection[str], whose: str) -> str:
    """What to write instead of an option that something does not have."""
    if not options:
        return f"leave it out: {whose} has no options"
    if _SYNONYMS.get(name) in options:
        return f'here it is called "{_SYNONYMS[name]}"'
    if name in _OF_OPTIMIZERS and "optimizer" in options:
        kind = _OF_OPTIMIZERS[name]
        table = f'{{name = "{kind.lower()}", {name} = ...}}'
        return (
            f"give it to the optimizer: optimizer = {table}, in Python optimizer={kind}({name}=...)"
        )
    return nearest(name, options)
