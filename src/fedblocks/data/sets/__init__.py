"""Data sets in files: found in FEDBLOCKS_DATA, checked, decoded once, and loaded by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fedblocks.core.errors import DataError, nearest
from fedblocks.data.pools import DataSet
from fedblocks.data.sets import (
    angles,
    cifar,
    corpora,
    femnist,
    har,
    hugging_face,
    idx,
    leaf_text,
    own,
    own_texts,
    parkinsons,
    parquet,
    realworld,
    stl10,
    tff,
    wisdm,
)
from fedblocks.data.sets.download import download
from fedblocks.data.sets.files import StoredSet, look, roots, wanted

SETS: dict[str, DataSet] = {
    **cifar.SETS,
    **idx.SETS,
    **femnist.SETS,
    **stl10.SETS,
    **har.SETS,
    **angles.SETS,
    **realworld.SETS,
    **wisdm.SETS,
    **parkinsons.SETS,
    **corpora.SETS,
    **leaf_text.SETS,
    **tff.SETS,
    **own.SETS,
    **parquet.SETS,
    **hugging_face.SETS,
    **own_texts.SETS,
}


def describe_sets() -> list[dict[str, Any]]:
    """Every data set that needs files: whether they are found, in which form, and where
    they are or would go.
    """
    return [describe_set(entry) for entry in SETS.values() if isinstance(entry, StoredSet)]


def describe_set(stored: StoredSet) -> dict[str, Any]:
    """One data set: name, found, form, where, and what to do if its files are missing;
    as plain JSON values.
    """
    local = look(stored.files)
    where = local.paths[0].parent if local else roots()[0] / stored.files.folder
    entry = {
        "name": stored.name,
        "found": local is not None,
        "where": str(where),
        "home": stored.files.home,
    }
    return {
        **entry,
        "form": local.source.form if local else None,
        "fix": "" if local else wanted(stored.files),
    }


def fetch(name: str, form: str | None = None) -> list[Path]:
    """Fetch the official files of a data set by name, where its site offers them; never
    done unasked.
    """
    stored = SETS.get(name)
    if not isinstance(stored, StoredSet):
        raise DataError(f'no files belong to a data set "{name}"', nearest(name, SETS))
    return download(stored.files, form)
