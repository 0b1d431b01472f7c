"""What a client keeps on its own disk: its personal blocks after every round, and a
download that is half done.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedblocks.core.errors import CheckpointError
from fedblocks.core.parts import Blocks
from fedblocks.flower.client.excuses import excuse_for
from fedblocks.flower.wire.messages import Malformed
from fedblocks.runs.storage import checkpoint

log = logging.getLogger(__name__)
# rounds whose personal blocks stay: the server may go back to its last checkpoint but one, while
# a client is a round ahead
KEPT = 3


class OtherPlan(CheckpointError):
    """What is there was kept under another plan."""


@dataclass(frozen=True)
class PersonalStore:
    """A folder of one client in one run of one federation; every write is whole or absent, also
    after a kill.

    What a plan kept is read under that plan alone: another one could send what this one keeps
    private.
    """

    root: Path
    client: int

    @staticmethod
    def of(folder: str | Path, federation: str, run: str, client: int) -> PersonalStore:
        """Return the store of a client, in a folder that only its owner may read."""
        names = (federation, run)
        if any(
            not n or n.startswith(".") or not n.replace("-", "").replace("_", "").isalnum()
            for n in names
        ):
            raise ValueError(
                f"federation and run are named by letters, digits, - and _, not {names}"
            )
        root = Path(folder) / federation / run / f"client-{client:06d}"
        root.mkdir(parents=True, exist_ok=True, mode=0o700)
        root.chmod(0o700)
        return PersonalStore(root, client)

    def commit(self, rounds: int, private: Blocks, kept: int, plan: str) -> None:
        """Keep the personal blocks as they are after some rounds; those the server last
        heard of stay too.
        """
        tree = {"plan": plan, "tree": private}
        self._save(self.root / "personal", rounds, tree, keep=KEPT, best_round=kept)

    def load(self, rounds: int, plan: str) -> Blocks:
        """Read the personal blocks as they were after some rounds; empty for a client
        that never took part.
        """
        if rounds == 0:
            return {}
        try:
            return self._load(self.root / "personal", rounds, plan)
        except CheckpointError as error:
            raise self._lost("lost-state", f"personal blocks of round {rounds}", error) from error

    def keep_model(self, rounds: int, blocks: Blocks) -> None:
        """Keep the whole model of a client that joined a trained federation."""
        self._save(self.root / "model", rounds, blocks, keep=1)

    def model(self) -> Blocks:
        """Read the model that a client got when it joined."""
        return checkpoint.load(self.root / "model").clients[self.client]

    def put_aside(self, rounds: int, download: dict[str, Any], plan: str) -> None:
        """Keep a first download until the second one comes."""
        self._save(self.root / "pending", rounds, {"plan": plan, "tree": download}, keep=1)

    def aside(self, rounds: int, plan: str) -> dict[str, Any]:
        """Read the first download of a round."""
        try:
            return self._load(self.root / "pending", rounds, plan)
        except CheckpointError as error:
            raise self._lost("lost-download", f"first download of round {rounds}", error) from error

    def _lost(self, reason: str, what: str, error: CheckpointError) -> Malformed:
        """Return what the server is told; where the files lie is for this machine's log."""
        log.warning("client %d: %s in %s: %s", self.client, what, self.root, error.message)
        return Malformed(
            reason,
            f"{what}: {error.message if isinstance(error, OtherPlan) else excuse_for(error)}",
        )

    def _save(
        self, folder: Path, rounds: int, tree: Any, keep: int, best_round: int | None = None
    ) -> None:
        checkpoint.save(
            folder, rounds, {}, {self.client: tree}, None, keep=keep, best_round=best_round
        )

    def _load(self, folder: Path, rounds: int, plan: str) -> dict[str, Any]:
        kept: dict[str, Any] = checkpoint.load_round(folder / f"round-{rounds:06d}").clients[
            self.client
        ]
        if kept.get("plan") != plan:
            raise OtherPlan(
                "kept under another version, method, options, net or seed", "start a new run"
            )
        tree: dict[str, Any] = kept["tree"]
        return tree
