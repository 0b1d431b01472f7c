"""Mirrors of a run in other tools: TensorBoard, Weights & Biases, Trackio, MLflow.

A mirror only watches. Nothing of it enters the configuration or the results, and one that fails is
switched off with a warning while the run goes on. Each has a thread of its own: a slow one does not
hold up the run, and at its end is waited for a few seconds only.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from fedblocks.config.model import Config
from fedblocks.config.tracking import check_tracker
from fedblocks.runs.beside import Beside, Tracker
from fedblocks.runs.progress import OnNote, RoundDone
from fedblocks.runs.storage.record import Note

PATIENCE = 5.0  # seconds that the end of a run waits for its trackers
PROJECT = "fedblocks"  # what runs are filed under
NEEDS = {  # tracker -> its package, and what installs it
    "tensorboard": ("tensorboardX", 'pip install "fedblocks[track]"'),
    "wandb": ("wandb", "pip install wandb"),
    "trackio": ("trackio", "pip install trackio"),
    "mlflow": ("mlflow", "pip install mlflow"),
}


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
        self._tell = tell or (lambda note: None)
        there = [name for name in dict.fromkeys(map(check_tracker, names)) if self._is_there(name)]
        # partial: the trackers of this module as they are when the thread begins
        self._besides = [Beside(name, partial(_open, name, folder, config)) for name in there]

    def on_round(self, done: RoundDone) -> None:
        """One round more; trackers start with the first, when the folder of the run is there."""
        for one in self._besides:
            one.log(done.round, numbers_of(done))
        self._pass_on()

    def close(self) -> None:
        """The run has ended; trackers have a few seconds in all to end as well."""
        end = time.monotonic() + PATIENCE
        for one in self._besides:
            one.finish()
        for one in self._besides:
            one.wait(max(0.0, end - time.monotonic()))
        self._pass_on()
        self._besides = []

    def __enter__(self) -> Mirrors:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _pass_on(self) -> None:
        """Tell what happened to the trackers meanwhile, from the thread of the run."""
        for one in self._besides:
            while one.remarks:
                self._tell(Note(f'tracker "{one.name}" {one.remarks.popleft()}', "warning"))

    def _is_there(self, name: str) -> bool:
        package, command = NEEDS[name]
        if find_spec(package) is not None:
            return True
        self._tell(
            Note(f'tracker "{name}" is off: it needs the package {package}; {command}', "warning")
        )
        return False


def _open(name: str, folder: Path, config: Config) -> Tracker:
    return TRACKERS[name](folder, config)


def numbers_of(done: RoundDone) -> dict[str, float]:
    """What is mirrored of a round."""
    results = {f"{done.metric.name}/{part}": mean for part, mean in done.scores.items()}
    results |= {f"loss/{part}": mean for part, mean in done.losses.items()}
    traffic = {"megabytes/down": done.bytes_down / 1e6, "megabytes/up": done.bytes_up / 1e6}
    return {
        **results,
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
