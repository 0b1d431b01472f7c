"""A federation at a glance: a line per client, and a summary."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from fedblocks.data.summary import labels_held, spread
from fedblocks.data.targets import spread_of_targets

if TYPE_CHECKING:
    from fedblocks.data.federation import Federation


def preview(federation: Federation, most: int | None) -> list[dict[str, Any]]:
    """One line per client, ready for a table; labels are those of the train part."""
    shown = federation
    if most is not None:
        shown = federation.subset(np.arange(min(most, federation.clients)))
    columns = {
        "client": list(shown.names),
        **{part: rows.sizes.tolist() for part, rows in shown.parts.items()},
        **_targets_held(shown),
        **{name: tag.tolist() for name, tag in shown.tags.items()},
    }
    return [dict(zip(columns, line)) for line in zip(*columns.values())]


def describe(federation: Federation) -> dict[str, Any]:
    """Sizes, shapes and label spread of the whole federation, as plain JSON values."""
    return {
        "clients": federation.clients,
        "rows": len(federation.x),
        "input": {
            "shape": list(federation.x.shape[1:]),
            "type": str(federation.input_type).removeprefix("torch."),
        },
        "label": {"shape": list(federation.y.shape[1:]), "classes": federation.classes},
        "task": federation.task.table(),
        **{part: spread(rows.sizes) for part, rows in federation.parts.items()},
        **_mean_held(federation),
        "tags": {name: tag_counts(tag) for name, tag in federation.tags.items()},
        "about": federation.about,
    }


def _targets_held(federation: Federation) -> dict[str, list[Any]]:
    """Columns for a line per client: how its training labels are spread."""
    if not federation.task.of_classes:
        return spread_of_targets(federation, federation.train)
    held = labels_held(federation.train, federation.y.cpu().numpy())
    shares = np.round(held.top_share, 4).tolist()
    return {"classes": held.classes.tolist(), "top_share": shares}


def _mean_held(federation: Federation) -> dict[str, float]:
    if not federation.task.of_classes:
        return {}
    held = labels_held(federation.train, federation.y.cpu().numpy())
    someone = federation.clients > 0
    return {
        "classes_held_mean": round(float(held.classes.mean()), 4) if someone else 0.0,
        "top_share_mean": round(float(held.top_share.mean()), 4) if someone else 0.0,
    }


def tag_counts(tag: np.ndarray) -> dict[str, int]:
    """How many clients carry each value of a tag."""
    values, counts = np.unique(tag, return_counts=True)
    return {str(value): int(count) for value, count in zip(values, counts)}
