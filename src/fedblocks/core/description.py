"""What a method says about itself, for plans, reports, exports and warnings. Nothing
here changes what is learned.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Self

from torch import Tensor

from fedblocks.core.parts import Blocks

if TYPE_CHECKING:
    from fedblocks.core.client import Client


@dataclass(frozen=True)
class Paper:
    """Where a method comes from."""

    title: str
    authors: str
    year: int
    venue: str = ""


class Described:
    """The describing half of a method; every hook has a default that says nothing."""

    paper: ClassVar[Paper]
    personal_by: ClassVar[str] = "client"  # "none", "client", "cluster" or "instance"
    # `writes` in words: for pools, or by name of the block
    weight_label: ClassVar[str | Mapping[str, str]] = "n"

    def portrait(self, blocks: Blocks, client: Client) -> dict[str, Tensor]:
        """Return a few numbers that show how a client's model is put together, such as its gates.

        Called in every evaluation, on the client; reports draw the numbers as maps of clients and
        rounds.
        """
        return {}

    def slim(self, blocks: Blocks) -> tuple[Self, Blocks]:
        """Return the same personal model without what it never uses, such as modules that its gates
        leave out.

        Called by `export` with the blocks of one client.
        """
        return self, blocks

    def degenerate(self) -> list[str]:
        """Name the options that silently make this another method, each as a sentence.

        Configurations with such options are refused unless they set `allow_degenerate`.
        """
        return []

    def remarks(self, tags: Mapping[str, Tensor]) -> list[str]:
        """Say what a user should know of these clients, [clients] by tag, each as a sentence.

        Called once, before the first round; a run prints and records the sentences as warnings.
        """
        return []

    def conclusions(self, portraits: Mapping[str, Mapping[int, Sequence[float]]]) -> list[str]:
        """Say what a user should know of the models that came out, by their portraits (name ->
        client -> numbers), each as a sentence.

        Called once, after the last round; a run records the sentences as warnings.
        """
        return []


@dataclass(frozen=True)
class _ByOptions:
    usually: Any
    exactly: Callable[[Any], Any]

    def __get__(self, method: Described | None, kind: type[Described]) -> Any:
        return self.usually if method is None else self.exactly(method)


def by_options(usually: Any, exactly: Callable[[Any], Any]) -> Any:
    """Return a class attribute that depends on the options: `usually` on the class,
    `exactly(method)` on a method.
    """
    return _ByOptions(usually, exactly)
