"""Mirrors of a run in other tools: TensorBoard, Weights & Biases, Trackio, MLflow.

A mirror only watches. Nothing of it enters the configuration or the results, and one that fails is
switched off with a warning while the run goes on.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

from fedblocks.config.model import Config
from fedblocks.config.tracking import check_tracker
from fedblocks.runs.progress import OnNote, RoundDone
from fedblocks.runs.storage.record import Note

PROJECT = "fedblocks"  # what runs are filed under
NEEDS = {  # tracker -> its package, and what installs it
    "tensorboard": ("tensorboardX", 'pip install "fedblocks[track]"'),
    "wandb": ("wandb", "pip install wandb"),
    "trackio": ("trackio", "pip install trackio"),
    "mlflow": ("mlflow", "pip install mlflow"),
}


class Tracker(Protocol):
    """Where numbers go."""

    def log(self, round: int, numbers: Mapping[str, float]) -> None:
        """The numbers of one round."""

    def close(self) -> None:
        """There are no more rounds."""


class TensorBoard:
    """Event files in the folder of the run; see them with `tensorboard --logdir FOLDER`."""

    def __init__(self, folder: Path, config: Config) -> None:
        self._writer = import_module("tensorboardX").SummaryWriter(str(folder / "tensorboard"))

    def log(self, round: int, numbers: Mapping[str, float]) -> None:
        for name, value in numbers.items():
            self._writer.add_scalar(name, value, round)
        self._writer.flush()  # whoever watches is at most one round behind

    def close(self) -> None:
        self._writer.close()


class Wandb:
    """Weights & Biases, offline unless WANDB_MODE says otherwise: nothing leaves the
    machine unasked.
    """

    def __init__(self, folder: Path, config: Config) -> None:
        mode = os.environ.get("WANDB_MODE", "offline")
        self._run = import_module("wandb").init(
            project=PROJECT, name=folder.name, dir=str(folder), mode=mode, config=config.resolved()
        )

    def log(self, round: int, numbers: Mapping[str, float]) -> None:
        self._run.log(dict(numbers), step=round)

    def close(self) -> None:
        self._run.finish()


class Trackio:
    """Trackio, on this machine."""

    def __init__(self, folder: Path, config: Config) -> None:
        self._package = import_module("trackio")
        self._package.init(project=PROJECT, name=folder.name, config=config.resolved())

    def log(self, round: int, numbers: Mapping[str, float]) -> None:
        self._package.log(dict(numbers), step=round)

    def close(self) -> None:
        self._package.finish()


class MLflow:
    """MLflow: a database in the folder of the run, or the server that MLFLOW_TRACKING_URI names."""

    def __init__(self, folder: Path, config: Config) -> None:
        self._package = import_module("mlflow")
        if "MLFLOW_TRACKING_URI" not in os.environ:
            self._package.set_tracking_uri(f"sqlite:///{(folder / 'mlflow.db').resolve()}")
        self._package.set_experiment(PROJECT)
        self._package.start_run(run_name=folder.name)
        self._package.log_params(_flat(config.resolved()))

    def log(self, round: int, numbers: Mapping[str, float]) -> None:
        self._package.log_metrics(dict(numbers), step=round)

    def close(self) -> None:
        self._package.end_run()


TRACKERS: dict[str, Callable[[Path, Config], Tracker]] = {
    "tensorboard": TensorBoard,
    "wandb": Wandb,
    "trackio": Trackio,
    "mlflow": MLflow,
}


class Mirrors:
    """Some trackers beside one run: give `on_round` to `run`, and close when it has ended."""

    def __init__(
        self, names: Sequence[str], folder: Path, config: Config, tell: OnNote | None = None
    ) -> None:
        self._folder, self._config, self._tell = folder, config, tell or (lambda note: None)
        self._waiting = [
            name for name in dict.fromkeys(map(check_tracker, names)) if self._is_there(name)
        ]
        self._open: dict[str, Tracker] = {}

    def on_round(self, done: RoundDone) -> None:
        """One round more; trackers start with the first, when the folder of the run is there."""
        for name in self._waiting:
            self._safely(name, partial(self._start, name))
        self._waiting = []
        for name, tracker in list(self._open.items()):
            self._safely(name, partial(tracker.log, done.round, numbers_of(done)))

    def close(self) -> None:
        """The run has ended."""
        for name, tracker in list(self._open.items()):
            self._safely(name, tracker.close)
        self._open = {}

    def __enter__(self) -> Mirrors:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _start(self, name: str) -> None:
        self._open[name] = TRACKERS[name](self._folder, self._config)

    def _is_there(self, name: str) -> bool:
        package, command = NEEDS[name]
        if find_spec(package) is not None:
            return True
        self._tell(
            Note(f'tracker "{name}" is off: it needs the package {package}; {command}', "warning")
        )
        return False

    def _safely(self, name: str, action: Callable[[], None]) -> None:
        try:
            action()
        except (
            Exception,
            SystemExit,
        ) as error:  # whatever other people's code does, the run goes on
            self._open.pop(name, None)
            self._tell(
                Note(
                    f'tracker "{name}" failed and is off: {type(error).__name__}: {error}',
                    "warning",
                )
            )


def numbers_of(done: RoundDone) -> dict[str, float]:
    """What is mirrored of a round."""
    accuracy = {f"accuracy/{part}": mean for part, mean in done.accuracy.items()}
    traffic = {"megabytes/down": done.bytes_down / 1e6, "megabytes/up": done.bytes_up / 1e6}
    return {
        **accuracy,
        **traffic,
        "clients": done.clients,
        "refused": done.refused,
        "seconds": done.seconds,
    }


def _flat(table: Any, above: str = "") -> dict[str, str]:
    """Nested tables as `method.lr` -> text."""
    if not isinstance(table, dict):
        return {above: str(table)[:500]}
    return {
        k: v
        for key, value in table.items()
        for k, v in _flat(value, f"{above}.{key}" if above else key).items()
    }
