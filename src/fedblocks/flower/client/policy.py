"""What the owner of a client allows: which methods, how large a model, and what may leave."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ByteSize, ConfigDict, TypeAdapter, field_validator

Leaves = Literal["updates", "scores", "pictures", "tags"]
_SIZE = TypeAdapter(ByteSize)


class Allow(BaseModel):
    """The table `[allow]` of `client.toml`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    methods: tuple[str, ...] | None = None  # names; None: all that are installed
    largest: str = "2GB"  # bytes of a model, all blocks that the client is sent or keeps
    # what may leave, beside the number of examples
    send: tuple[Leaves, ...] = ("updates", "scores", "tags")

    @field_validator("largest")
    @classmethod
    def _is_a_size(cls, text: str) -> str:
        _SIZE.validate_python(text)
        return text

    @property
    def bytes(self) -> int:
        """The largest model in bytes."""
        return int(_SIZE.validate_python(self.largest))

    def runs(self, method: str) -> bool:
        """Whether a method may be run here."""
        return self.methods is None or method in self.methods
