"""What Flower's simulation runtime uses of Ray, with actors in its own process; what it is asked
for is written to the file that RAY_STAND_IN names.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any


class ObjectRef:
    """A result, or the error that came instead."""

    def __init__(self, work: Any, words: tuple[Any, ...], more: dict[str, Any]) -> None:
        self.result, self.error = None, None
        try:
            self.result = work(*words, **more)
        except Exception as error:
            self.error = error


class Method:
    """A method of an actor."""

    def __init__(self, work: Any) -> None:
        self.work = work

    def remote(self, *words: Any, **more: Any) -> ObjectRef:
        return ObjectRef(self.work, words, more)


class Actor:
    """An object whose methods are called by `remote`."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def __getattr__(self, name: str) -> Method:
        return Method(getattr(self.inner, name))


class ActorClass:
    """A class whose objects are actors."""

    def __init__(self, kind: Any) -> None:
        self.kind = kind

    def options(self, **resources: float) -> ActorClass:
        note(resources=resources)
        return self

    def remote(self, **words: Any) -> Actor:
        return Actor(self.kind(**words))


remote = ActorClass


def note(**what: Any) -> None:
    """Append what was asked for to the file of the test."""
    with Path(os.environ["RAY_STAND_IN"]).open("a") as file:
        file.write(json.dumps(what) + "\n")


def is_initialized() -> bool:
    return False


def init(**settings: Any) -> None:
    if os.environ.get("RAY_ADDRESS") == "nowhere":
        raise ConnectionError("no cluster of Ray at nowhere")
    note(address=os.environ.get("RAY_ADDRESS"), level=settings["logging_level"])


def nodes() -> list[dict[str, dict[str, float]]]:
    return [{"Resources": {"CPU": 2.0, "GPU": 0.5}}]


def get(reference: ObjectRef) -> Any:
    if reference.error is not None:
        raise reference.error
    return reference.result


def shutdown() -> None:
    note(shutdown=True)
