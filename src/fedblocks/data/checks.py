"""What is wrong with a federation (errors), and what is only worth knowing (warnings)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from fedblocks.core.errors import DataError, count_of
from fedblocks.data import streaming
from fedblocks.data.duplicates import repeated_tests
from fedblocks.data.field_bytes import remarks_on_bytes
from fedblocks.data.rows import Mask, same_length, some_names
from fedblocks.data.summary import IGNORE, labels_held
from fedblocks.data.targets import (
    check_target_shape,
    gaps_in_labels,
    odd_targets,
    remarks_on_targets,
)

if TYPE_CHECKING:
    from fedblocks.data.federation import Federation


def check(federation: Federation, allow_empty: bool) -> None:
    """Raise DataError for data that cannot be trained on."""
    check_names(federation)
    check_rows(federation)
    check_inputs(federation)
    check_labels(federation)
    if not allow_empty:
        check_not_empty(federation)


def check_shapes(federation: Federation) -> None:
    """The parts of a federation are of one size; cheap enough for every construction."""
    rows, clients = len(federation.x), len(federation.train)
    same_length(x=rows, y=len(federation.y))
    counts = {
        "names": len(federation.names),
        "validation": len(federation.validation),
        "test": len(federation.test),
    }
    counts |= {f"tag {name}": len(tag) for name, tag in federation.tags.items()}
    for what, count in counts.items():
        if count != clients:
            raise DataError(
                f"there are {clients} clients, but {what} has {count} entries",
                "give one for each client",
            )
    check_target_shape(federation)
    if federation.classes < 1:
        y = federation.y
        if federation.task.of_classes and len(y) and int(y.max()) < 0:
            raise _no_class(y)
        raise DataError(f"classes is {federation.classes}", "give the number of classes, 1 or more")


def _no_class(y: Tensor) -> DataError:
    """Why labels that are all below 0 say nothing."""
    if bool((y == IGNORE).all()):
        message = f"all labels are {IGNORE}, which stands for 'not known': nothing can be learned"
        return DataError(message, "give the labels that are known")
    message = f"labels go from {int(y.min())} to {int(y.max())}"
    return DataError(message, "number the classes from 0: classes, y = np.unique(y, ...)")


def check_names(federation: Federation) -> None:
    """Two clients of one name cannot be told apart in a report."""
    names = federation.names
    if isinstance(names, tuple) and len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise DataError(f'two clients are called "{twice}"', "give every client a name of its own")


def check_rows(federation: Federation) -> None:
    """Row numbers point into the pool."""
    for part, rows in federation.parts.items():
        outside = (rows.index < 0) | (rows.index >= len(federation.x))
        if outside.any():
            who = some_names(federation.names, np.unique(rows.owners[outside]))
            fix = f"row numbers go from 0 to {len(federation.x) - 1}"
            raise DataError(f"{part} rows out of range at {who}", fix)


def check_inputs(federation: Federation) -> None:
    """Inputs are finite."""
    if federation.streamed:
        check_file(federation)
        return
    x = federation.x
    # the sum: one pass without a large mask
    if x.is_floating_point() and len(x) and not torch.isfinite(x.sum()):
        bad = (~torch.isfinite(x.reshape(len(x), -1)).all(1)).cpu().numpy() & held(federation)
        if bad.any():
            where = f"{_first_odd(x, bad)} (clients: {holders(federation, bad)})"
            raise DataError(
                f"inputs are not finite (NaN or infinite): {where}", "remove or fill these rows"
            )


def check_file(federation: Federation) -> None:
    """Inputs in a file are finite; it is read piece by piece."""
    if not federation.input_type.is_floating_point:
        return
    for first, piece in streaming.pieces(federation.x):
        if torch.isfinite(piece.sum()):
            continue
        bad = ~torch.isfinite(piece.reshape(len(piece), -1)).all(1).numpy()
        rows = first + np.flatnonzero(bad & held(federation)[first : first + len(piece)])
        if len(rows):
            message = f"inputs are not finite (NaN or infinite): row {rows[0]} of the file"
            raise DataError(message, "remove or fill such rows")


def _first_odd(x: torch.Tensor, bad: Mask) -> str:
    """Where the first value is that is no number: `row 17, column 3 is nan, and 4 more values`."""
    rows = np.flatnonzero(bad)
    odd = (~torch.isfinite(x[torch.from_numpy(rows).to(x.device)])).nonzero()
    row, place = int(rows[0]), odd[0, 1:].tolist()
    at = f", column {place[0]}" if len(place) == 1 else f", at {place}" if place else ""
    more = f", and {count_of(len(odd) - 1, 'more value')}" if len(odd) > 1 else ""
    return f"row {row}{at} is {x[(row, *place)].item()}{more}"


def check_labels(federation: Federation) -> None:
    """Labels are classes, or IGNORE; other targets are numbers, or there or not."""
    y = federation.y
    if not federation.task.of_classes:
        check_numbers(federation)
        return
    wrong = ((y < 0) | (y >= federation.classes)) & (y != IGNORE)
    if wrong.any():
        bad = wrong.reshape(len(y), -1).any(1).cpu().numpy() & held(federation)
        if bad.any():
            row = int(np.flatnonzero(bad)[0])
            scored = y[y != IGNORE]
            first = f"row {row} has label {int(y[row][wrong[row]].flatten()[0])}"
            where = f"{first} (clients: {holders(federation, bad)})"
            ends = f"all go from {int(scored.min())} to {int(scored.max())}"
            message = f"labels outside 0..{federation.classes - 1}: {where}; {ends}"
            raise DataError(
                message,
                f"number the classes from 0, raise `classes`, or use {IGNORE} for 'not scored'",
            )


def check_numbers(federation: Federation) -> None:
    """Numbers and several labels are what their task allows."""
    odd, message, fix = odd_targets(federation)
    bad = odd.any(1).cpu().numpy() & held(federation)
    if bad.any():
        row = int(np.flatnonzero(bad)[0])
        value = federation.y[row][odd[row]][0].item()
        who = f"row {row} has {value:g} (clients: {holders(federation, bad)})"
        raise DataError(f"{message}: {who}", fix)


def check_not_empty(federation: Federation) -> None:
    """Everybody has something to train on."""
    empty = np.flatnonzero(federation.train.sizes == 0)
    if len(empty):
        message = f"no training rows at {some_names(federation.names, empty)}"
        fix = (
            "use partition.without_empty(), a larger min_size or alpha, or, where the federation "
            "is made, allow_empty=True"
        )
        raise DataError(message, fix)


def held(federation: Federation) -> Mask:
    """Which rows of the pool a client has in any part."""
    mask = np.zeros(len(federation.x), dtype=bool)
    for rows in federation.parts.values():
        mask[rows.index] = True
    return mask


def holders(federation: Federation, bad: Mask) -> str:
    """The names of the clients that have a bad row in any part."""
    who = [rows.owners[bad[rows.index]] for rows in federation.parts.values()]
    return some_names(federation.names, np.unique(np.concatenate(who)))


def warnings(federation: Federation, few: int) -> list[str]:
    """Readable remarks on clients that are allowed but easily overlooked."""
    train, names = federation.train, federation.names
    nobody_tests = len(train.index) > 0 and not len(federation.test.index)
    remarks = {
        **_one_class(federation),
        "have no training rows": train.sizes == 0,
        f"have fewer than {few} training rows": (train.sizes < few) & (train.sizes > 0),
        "have no known training target": _without_targets(federation),
        "have no test rows": (federation.test.sizes == 0) & (not nobody_tests),
    }
    clients = {what: np.flatnonzero(mask) for what, mask in remarks.items()}
    messages = [
        f"{count_of(len(who), 'client')} {_verb(what, len(who))}: {some_names(names, who)}"
        for what, who in clients.items()
        if len(who)
    ]
    if nobody_tests:
        fix = "split=(0.6, 0.2, 0.2) gives everybody some"
        if train.sizes.max() == 1 and not len(federation.validation.index):
            fix = "each has a single row, so that no split helps; a client needs 2 rows or more"
        messages.append(f"no client has test rows: {fix}")
    trained, tested = np.zeros((2, len(federation.x)), dtype=bool)
    trained[train.index], tested[federation.test.index] = True, True
    leaked = int(np.count_nonzero(trained & tested))
    messages += [*remarks_on_targets(federation), *remarks_on_bytes(federation)]
    if gaps := gaps_in_labels(federation):
        messages.append(f"{gaps}: a net has an output for each of {federation.classes} classes")
    both = f"{count_of(leaked, 'row')} {'is' if leaked == 1 else 'are'} both trained and tested on"
    return messages + [text for text in (both * bool(leaked), repeated_tests(federation)) if text]


def _without_targets(federation: Federation) -> Mask:
    """Clients with training rows of which none can be learned from."""
    y, train = federation.y, federation.train
    known = federation.task.scored(y).reshape(len(y), -1).any(1).cpu().numpy()
    scored = np.bincount(train.owners[known[train.index]], minlength=federation.clients)
    without: Mask = (train.sizes > 0) & (scored == 0)
    return without


def _verb(remark: str, clients: int) -> str:
    """A remark about several clients, or about one."""
    verb, _, rest = remark.partition(" ")
    singular = {"have": "has", "hold": "holds"}
    return f"{singular[verb]} {rest}" if clients == 1 else remark


def _one_class(federation: Federation) -> dict[str, Mask]:
    if not federation.task.of_classes:
        return {}
    held = labels_held(federation.train, federation.y.cpu().numpy())
    return {"hold one class only": held.classes == 1}
