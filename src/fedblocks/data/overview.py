"""A federation at a glance: a line per client, and a summary."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from fedblocks.data.summary import labels_held, spread

if TYPE_CHECKING:
    from fedblocks.data.federation import Federation


def preview(federation: Federation, most: int | None) -> list[dict[str, Any]]:
    """One line per client, ready for a table; labels are those of the train part."""
    shown = federation
    if most is not None:
        shown = federation.subset(np.arange(min(most, federation.clients)))
    held = labels_held(shown.train, shown.y.cpu().numpy())
    columns = {
        "client": list(shown.names),
        **{part: rows.sizes.tolist() for part, rows in shown.parts.items()},
        "classes": held.classes.tolist(),
        "top_share": np.round(held.top_share, 4).tolist(),
        **{name: tag.tolist() for name, tag in shown.tags.items()},
    }
    return [dict(zip(columns, line)) for line in zip(*columns.values())]


def describe(federation: Federation) -> dict[str, Any]:
    """Sizes, shapes and label spread of the whole federation, as plain JSON values."""
    held = labels_held(federation.train, federation.y.cpu().numpy())
    return {
        "clients": federation.clients,
        "rows": len(federation.x),
        "input": {
            "shape": list(federation.x.shape[1:]),
            "type": str(federation.x.dtype).removeprefix("torch."),
        },
        "label": {"shape": list(federation.y.shape[1:]), "classes": federation.classes},
        **{part: spread(rows.sizes) for part, rows in federation.parts.items()},
        "classes_held_mean": round(float(held.classes.mean()), 4) if federation.clients else 0.0,
        "top_share_mean": round(float(held.top_share.mean()), 4) if federation.clients else 0.0,
        "tags": {name: tag_counts(tag) for name, tag in federation.tags.items()},
        "about": federation.about,
    }


def tag_counts(tag: np.ndarray) -> dict[str, int]:
    """How many clients carry each value of a tag."""
    values, counts = np.unique(tag, return_counts=True)
    return {str(value): int(count) for value, count in zip(values, counts)}
