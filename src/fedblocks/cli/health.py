"""What `fedblocks doctor` looks at. Nothing here imports torch: it must work where
torch does not.
"""

from __future__ import annotations

import os
import re
import shutil
import sqlite3
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from fedblocks.cli import packages

State = Literal["ok", "missing", "warning", "problem"]  # missing: something optional

GIGA = 1e9
EXTRAS = {  # extra -> what it gives
    "report": "HTML reports",
    "track": "curves for TensorBoard",
    "tune": "search for options",
    "flower": "deployment with Flower",
    "flower-simulation": "federations on Ray, for several GPUs or machines",
    "dashboard": "runs in a browser, live",
    "export": "personal models as ONNX",
    "analysis": "data sets stored as MATLAB files",
    "images": "data sets stored as image files",
    "hub": "models and data sets of Hugging Face",
    "parquet": "tables as parquet files",
    "plot": "figures for papers",
}


@dataclass(frozen=True)
class HealthFinding:
    """One thing that was looked at."""

    check: str
    state: State
    detail: str  # what is there, or what is wrong with it
    fix: str = ""


def findings(folder: Path) -> Iterator[HealthFinding]:
    """Everything, for runs that would go below a folder."""
    yield _python()
    yield from _torch()
    yield from _packages()
    yield from _extras()
    yield from _data()
    yield from _disk(folder)
    yield _cores()
    yield _ranks()
    yield _memory()
    yield _clock()
    yield _terminal()


def _python() -> HealthFinding:
    numbers = sys.version_info[:2]
    version = sys.version.split()[0]
    if numbers < (3, 11):
        fix = "use Python 3.11, 3.12 or 3.13"
        return HealthFinding("Python", "problem", f"{version} is too old", fix)
    if sqlite3.sqlite_version_info < (3, 35):
        detail = f"its SQLite {sqlite3.sqlite_version} is too old"
        return HealthFinding("Python", "problem", detail, "use a newer Python")
    return HealthFinding("Python", "ok", version)


def _torch() -> Iterator[HealthFinding]:
    version = packages.version_of("torch")
    if version is None:
        yield HealthFinding("torch", "problem", "it is not installed", "pip install torch")
        return
    cuda = packages.torch_cuda()
    yield HealthFinding("torch", "ok", f"{version}, {f'for CUDA {cuda}' if cuda else 'for CPUs'}")
    yield _gpu(cuda, packages.driver_cuda())


def _gpu(cuda: str | None, driver: str | None) -> HealthFinding:
    """Whether the CUDA version of torch and that of the driver go together."""
    if driver is None:
        state: State = "warning" if cuda else "ok"
        fix = "install a driver, or go on without a GPU" if cuda else ""
        return HealthFinding("GPU", state, "no NVIDIA driver found", fix)
    if cuda is None:
        detail = f"the driver can do CUDA {driver}, but this torch is for CPUs"
        fix = "install a CUDA build of torch, or go on with the CPU"
        return HealthFinding("GPU", "warning", detail, fix)
    if packages.numbers(cuda)[:1] > packages.numbers(driver)[:1]:
        detail = f"torch is for CUDA {cuda}, the driver for {driver}"
        fix = f"update the driver, or install a torch for CUDA {driver} or older"
        return HealthFinding("GPU", "problem", detail, fix)
    return HealthFinding("GPU", "ok", f"driver for CUDA {driver}")


def _packages() -> Iterator[HealthFinding]:
    """The core, and what Flower asks of packages that the command uses too."""
    for name in ("fedblocks", "flwr"):
        version = packages.version_of(name)
        if version is None:
            continue
        check = f"packages of {name}"
        wrong = packages.unmet(name)
        if not wrong:
            yield HealthFinding(check, "ok", f"{name} {version}")
            continue
        clashes = [f"{name} needs {wanted}, found {package}" for package, wanted in wrong.items()]
        fix = "pip install " + " ".join(f'"{wanted}"' for wanted in wrong.values())
        yield HealthFinding(check, "problem", "; ".join(clashes), fix)


def _extras() -> Iterator[HealthFinding]:
    needs = packages.requirements("fedblocks")
    for extra, gives in EXTRAS.items():
        wanted = [name for name, _, of in needs if of == extra]
        absent = [name for name in wanted if packages.version_of(name) is None]
        fix = f'pip install "fedblocks[{extra}]"' if absent else ""
        text = f"{gives}: {', '.join(absent)} not installed" if absent else gives
        yield HealthFinding(f"extra {extra}", "missing" if absent else "ok", text, fix)


def _data() -> Iterator[HealthFinding]:
    parts = os.environ.get("FEDBLOCKS_DATA", "").split(os.pathsep)
    named = [Path(part).expanduser() for part in parts if part]
    for root in named or [Path.home() / "fedblocks-data"]:
        if root.is_dir():
            folders = [entry.name for entry in root.iterdir() if entry.is_dir()]
            sets = sorted(name for name in folders if not name.startswith("."))
            yield HealthFinding("data sets", "ok", f"{root}: {', '.join(sets) or 'no folders'}")
        elif named:
            detail = f"FEDBLOCKS_DATA names {root}, which is not a folder"
            yield HealthFinding("data sets", "problem", detail, "set it anew")
        else:
            detail = "only those that come with the library"
            fix = "set FEDBLOCKS_DATA to your folder of data sets, if you have one"
            yield HealthFinding("data sets", "ok", detail, fix)


def _disk(folder: Path) -> Iterator[HealthFinding]:
    place = next(path for path in (folder.resolve(), *folder.resolve().parents) if path.exists())
    if not (place.is_dir() and os.access(place, os.W_OK | os.X_OK)):
        fix = "work in a folder of your own, or use --out"
        yield HealthFinding("runs", "problem", f"{place} cannot be written", fix)
    else:
        yield HealthFinding("runs", "ok", f"{folder} can be written")
    free = shutil.disk_usage(place).free / GIGA
    state: State = "problem" if free < 0.5 else "warning" if free < 5 else "ok"
    fix = "" if state == "ok" else "make room, or use --out on another disk"
    yield HealthFinding("disk", state, f"{free:.1f} GB free", fix)


def _cores() -> HealthFinding:
    cores = (
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    )
    threads = os.environ.get("OMP_NUM_THREADS", "")
    if threads and (not threads.isdigit() or not 1 <= int(threads) <= cores):
        fix = f"set it to a number from 1 to {cores}, or unset it"
        return HealthFinding("cores", "warning", f"{cores}, but OMP_NUM_THREADS = {threads}", fix)
    detail = f"{cores}, OMP_NUM_THREADS = {threads}" if threads else f"{cores}"
    return HealthFinding("cores", "ok", detail)


def _ranks() -> HealthFinding:
    """Whether a run can be spread over GPUs and machines; as a rank, whether all is set for it."""
    start = "torchrun --nproc-per-node N -m fedblocks run CONFIG"
    if not {"RANK", "WORLD_SIZE"} & os.environ.keys():
        if packages.version_of("torch") is None:
            return HealthFinding("ranks", "missing", "torchrun comes with torch")
        return HealthFinding("ranks", "ok", f"this process works alone; several: {start}")
    names = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
    absent = [name for name in names if not os.environ.get(name)]
    if absent:
        detail = f"one of several ranks, but {absent[0]} is not set"
        return HealthFinding("ranks", "problem", detail, f"start with: {start}")
    rank, count, *where = (os.environ[name] for name in names)
    return HealthFinding("ranks", "ok", f"rank {rank} of {count}, at {':'.join(where)}")


def _memory() -> HealthFinding:
    try:
        text = Path("/proc/meminfo").read_text()
    except OSError:
        return HealthFinding("memory", "ok", "unknown on this system")
    match = re.search(r"MemAvailable:\s*(\d+)", text)
    free = int(match[1]) * 1024 / GIGA if match else 0.0
    detail = f"{free:.1f} GB free"
    if free < 1:
        return HealthFinding("memory", "warning", detail, "free some")
    return HealthFinding("memory", "ok", detail)


def _clock() -> HealthFinding:
    """A clock that stands before the newest of our own files is wrong; certificates
    then fail, and dates mislead.
    """
    newest = max(path.stat().st_mtime for path in Path(__file__).parent.glob("*.py"))
    if time.time() < newest - 86400:
        detail = time.strftime("it says %Y-%m-%d")
        return HealthFinding("clock", "problem", detail, "set the clock of this machine")
    return HealthFinding("clock", "ok", time.strftime("%Y-%m-%d %H:%M %Z"))


def _terminal() -> HealthFinding:
    encoding = (sys.stdout.encoding or "unknown").lower()
    if encoding.replace("-", "") != "utf8":
        fix = "set LC_ALL=C.UTF-8, or PYTHONUTF8=1"
        detail = f"it takes {encoding}: names and bars may be lost"
        return HealthFinding("terminal", "warning", detail, fix)
    return HealthFinding("terminal", "ok", "UTF-8")
