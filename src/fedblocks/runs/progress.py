"""What a run tells whoever is watching."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from fedblocks.runs.storage.record import ClientMetric, Note, RoundRecord

OnNote = Callable[[Note], None]


@dataclass(frozen=True)
class RoundDone:
    """One round, as soon as it is stored."""

    round: int
    rounds: int  # in all
    clients: int  # that took part
    seconds: float
    bytes_down: int
    bytes_up: int
    refused: int  # clients whose update was not used
    # part -> mean accuracy of the personal models over clients; empty: not evaluated
    accuracy: dict[str, float]

    @staticmethod
    def of(record: RoundRecord, rounds: int) -> RoundDone:
        """The gist of a record."""
        return RoundDone(
            round=record.round,
            rounds=rounds,
            clients=record.clients,
            seconds=record.seconds,
            bytes_down=record.sent("down"),
            bytes_up=record.sent("up"),
            refused=len({refusal.client for refusal in record.refusals}),
            accuracy=_means(record.metrics),
        )

    def line(self) -> str:
        """One line for a log."""
        parts = [f"round {self.round}/{self.rounds}", f"{self.clients} clients"]
        parts += [f"{part} {mean:.1%}" for part, mean in self.accuracy.items()]
        parts += [f"{(self.bytes_down + self.bytes_up) / 1e6:.2f} MB", f"{self.seconds:.2f} s"]
        return "  ".join(parts + ([f"{self.refused} refused"] if self.refused else []))


OnRound = Callable[[RoundDone], None]


def _means(metrics: Sequence[ClientMetric]) -> dict[str, float]:
    by_part: dict[str, list[float]] = {}
    for row in metrics:
        if row.view == "personal" and row.examples > 0:
            by_part.setdefault(row.part, []).append(row.correct / row.examples)
    return {part: sum(values) / len(values) for part, values in by_part.items()}
