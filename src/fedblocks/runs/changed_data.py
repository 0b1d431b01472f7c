"""Arrays are shared with a federation, not copied: whoever changes them while a run goes on changes
its data.
"""

from __future__ import annotations

from fedblocks.config.model import Config
from fedblocks.runs.progress import OnNote
from fedblocks.runs.storage.folder import RunFolder
from fedblocks.runs.storage.record import Note

CHANGED = (
    "the data are not those that the run was started with: their arrays, which a federation "
    "shares, were changed while it went on, and its numbers are of both; give copies, x.copy(), "
    "and start a new run"
)


def note_changed_data(config: Config, folder: RunFolder, tell: OnNote) -> None:
    """A warning, at the end of a run, where the arrays of a program were changed meanwhile."""
    ingredients = config.ingredients
    if (
        ingredients is None
        or ingredients.data.streamed
        or ingredients.data.hash() == ingredients.data_hash
    ):
        return
    folder.store.note(CHANGED, "warning")
    tell(Note(CHANGED, "warning"))
