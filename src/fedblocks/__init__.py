"""Personalised and modular federated learning. Names are imported when they are asked for: importing is free."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedblocks.core.errors import UserError as UserError
    from fedblocks.core.method import Method as Method
    from fedblocks.core.net import Net as Net
    from fedblocks.data import DATASETS as DATASETS
    from fedblocks.data.federation import Federation as Federation
    from fedblocks.export.models import export_model as export_model
    from fedblocks.export.personal import personal as personal
    from fedblocks.methods import METHODS as METHODS
    from fedblocks.nets import NETS as NETS
    from fedblocks.reports.compare import compare as compare
    from fedblocks.reports.html import write_report as write_report
    from fedblocks.reports.tables import leaderboard as leaderboard
    from fedblocks.runs.config import Config as Config
    from fedblocks.runs.presets import PRESETS as PRESETS
    from fedblocks.runs.presets import read_config as read_config
    from fedblocks.runs.result import RunResult as RunResult
    from fedblocks.runs.result import load_run as load_run
    from fedblocks.runs.run import resume as resume
    from fedblocks.runs.run import run as run

_HOMES = {
    "Config": "runs.config",
    "DATASETS": "data",
    "Federation": "data.federation",
    "METHODS": "methods",
    "Method": "core.method",
    "NETS": "nets",
    "Net": "core.net",
    "PRESETS": "runs.presets",
    "RunResult": "runs.result",
    "UserError": "core.errors",
    "compare": "reports.compare",
    "export_model": "export.models",
    "leaderboard": "reports.tables",
    "load_run": "runs.result",
    "personal": "export.personal",
    "read_config": "runs.presets",
    "resume": "runs.run",
    "run": "runs.run",
    "write_report": "reports.html",
}


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        return version("fedblocks")
    if name not in _HOMES:
        raise AttributeError(f"fedblocks has no name {name!r}")
    return getattr(import_module(f"fedblocks.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return [*_HOMES, "__version__"]
