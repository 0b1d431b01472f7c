"""What `fedblocks doctor` looks at. Nothing here imports torch: it must work where
torch does not.
"""

from __future__ import annotations

import os
import re
import shutil
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib import metadata, util
from pathlib import Path
from typing import Literal

State = Literal["ok", "missing", "warning", "problem"]  # missing: something optional

GIGA = 1e9
EXTRAS = {  # extra -> what it gives
    "report": "HTML reports",
    "track": "curves for TensorBoard",
    "tune": "hyper-parameter search",
    "flower": "deployment with Flower",
    "flower-simulation": "federations on Ray, for several GPUs or machines",
    "dashboard": "runs in a browser, live",
    "export": "personal models as ONNX",
    "analysis": "data sets stored as MATLAB files",
    "images": "data sets stored as image files",
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
    yield _memory()
    yield _clock()
    yield _terminal()


def _python() -> HealthFinding:
    version, said = sys.version_info[:2], sys.version.split()[0]
    if version < (3, 11):
        return HealthFinding(
            "Python", "problem", f"{said} is too old", "use Python 3.11, 3.12 or 3.13"
        )
    if sqlite3.sqlite_version_info < (3, 35):
        return HealthFinding(
            "Python",
            "problem",
            f"its SQLite {sqlite3.sqlite_version} is too old",
            "use a newer Python",
        )
    return HealthFinding("Python", "ok", said)


def _torch() -> Iterator[HealthFinding]:
    version, cuda = installed("torch"), torch_cuda()
    if version is None:
        yield HealthFinding("torch", "problem", "it is not installed", "pip install torch")
        return
    yield HealthFinding("torch", "ok", f"{version}, {f'for CUDA {cuda}' if cuda else 'for CPUs'}")
    driver = driver_cuda()
    if driver is None:
        state: State = "warning" if cuda else "ok"
        fix = "install a driver, or go on without a GPU" if cuda else ""
        yield HealthFinding("GPU", state, "no NVIDIA driver found", fix)
    elif cuda is None:
        fix = "install a CUDA build of torch, or go on with the CPU"
        yield HealthFinding(
            "GPU", "warning", f"the driver can do CUDA {driver}, but this torch is for CPUs", fix
        )
    elif numbers(cuda)[:1] > numbers(driver)[:1]:
        fix = f"update the driver, or install a torch for CUDA {driver} or older"
        yield HealthFinding(
            "GPU", "problem", f"torch is for CUDA {cuda}, the driver for {driver}", fix
        )
    else:
        yield HealthFinding("GPU", "ok", f"driver for CUDA {driver}")


def torch_cuda() -> str | None:
    """The CUDA version that torch was built for, read from its files."""
    spec = util.find_spec("torch")
    places = spec.submodule_search_locations if spec is not None else None
    path = Path(next(iter(places))) / "version.py" if places else None
    text = path.read_text(encoding="utf-8") if path is not None and path.is_file() else ""
    match = re.search(r"^cuda\b[^=\n]*=\s*['\"]([\d.]+)", text, re.MULTILINE)
    return match[1] if match else None


def driver_cuda() -> str | None:
    """The newest CUDA version that the NVIDIA driver can do, if there is a driver."""
    if shutil.which("nvidia-smi") is None:
        return None
    try:
        shown = subprocess.run(["nvidia-smi"], capture_output=True, text=True, timeout=10).stdout
    except (OSError, subprocess.SubprocessError):
        return None
    match = re.search(r"CUDA Version:\s*([\d.]+)", shown)
    return match[1] if match else None


def _packages() -> Iterator[HealthFinding]:
    """The core, and what Flower asks of packages that the command uses too."""
    for name in ("fedblocks", "flwr"):
        if installed(name) is None:
            continue
        wrong = unmet(name)
        fix = "pip install " + " ".join(f'"{wanted}"' for wanted in wrong.values())
        state: State = "problem" if wrong else "ok"
        clashes = "; ".join(
            f"{name} needs {wanted}, found {package}" for package, wanted in wrong.items()
        )
        yield HealthFinding(
            f"packages of {name}",
            state,
            clashes or f"{name} {installed(name)}",
            fix if wrong else "",
        )


def _extras() -> Iterator[HealthFinding]:
    needs = requirements("fedblocks")
    for extra, gives in EXTRAS.items():
        wanted = [name for name, _, of in needs if of == extra]
        absent = [name for name in wanted if installed(name) is None]
        fix = f'pip install "fedblocks[{extra}]"' if absent else ""
        text = f"{gives}: {', '.join(absent)} not installed" if absent else gives
        yield HealthFinding(f"extra {extra}", "missing" if absent else "ok", text, fix)


def _data() -> Iterator[HealthFinding]:
    named = [
        Path(part).expanduser()
        for part in os.environ.get("FEDBLOCKS_DATA", "").split(os.pathsep)
        if part
    ]
    for root in named or [Path.home() / "fedblocks-data"]:
        if root.is_dir():
            sets = sorted(
                entry.name
                for entry in root.iterdir()
                if entry.is_dir() and not entry.name.startswith(".")
            )
            yield HealthFinding("data sets", "ok", f"{root}: {', '.join(sets) or 'no folders'}")
        elif named:
            yield HealthFinding(
                "data sets",
                "problem",
                f"FEDBLOCKS_DATA names {root}, which is no folder",
                "set it anew",
            )
        else:
            text = "none but those that travel with the library"
            yield HealthFinding(
                "data sets",
                "ok",
                text,
                "set FEDBLOCKS_DATA to your folder of data sets, if you have one",
            )


def _disk(folder: Path) -> Iterator[HealthFinding]:
    place = next(path for path in (folder.resolve(), *folder.resolve().parents) if path.exists())
    if not (place.is_dir() and os.access(place, os.W_OK | os.X_OK)):
        yield HealthFinding(
            "runs",
            "problem",
            f"{place} cannot be written",
            "work in a folder of your own, or use --out",
        )
    else:
        yield HealthFinding("runs", "ok", f"{folder} can be written")
    free = shutil.disk_usage(place).free / GIGA
    low: State = "problem" if free < 0.5 else "warning" if free < 5 else "ok"
    yield HealthFinding(
        "disk",
        low,
        f"{free:.1f} GB free",
        "" if low == "ok" else "make room, or use --out on another disk",
    )


def _cores() -> HealthFinding:
    cores = (
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    )
    threads = os.environ.get("OMP_NUM_THREADS", "")
    if threads and (not threads.isdigit() or not 1 <= int(threads) <= cores):
        fix = f"set it to a number from 1 to {cores}, or unset it"
        return HealthFinding("cores", "warning", f"{cores}, but OMP_NUM_THREADS = {threads}", fix)
    return HealthFinding(
        "cores", "ok", f"{cores}" + (f", OMP_NUM_THREADS = {threads}" if threads else "")
    )


def _memory() -> HealthFinding:
    try:
        text = Path("/proc/meminfo").read_text()
    except OSError:
        return HealthFinding("memory", "ok", "unknown on this system")
    match = re.search(r"MemAvailable:\s*(\d+)", text)
    free = int(match[1]) * 1024 / GIGA if match else 0.0
    return HealthFinding(
        "memory",
        "ok" if free >= 1 else "warning",
        f"{free:.1f} GB free",
        "" if free >= 1 else "free some",
    )


def _clock() -> HealthFinding:
    """A clock that stands before the newest of our own files is wrong; certificates
    then fail, and dates mislead.
    """
    newest = max(path.stat().st_mtime for path in Path(__file__).parent.glob("*.py"))
    if time.time() < newest - 86400:
        return HealthFinding(
            "clock", "problem", time.strftime("it says %Y-%m-%d"), "set the clock of this machine"
        )
    return HealthFinding("clock", "ok", time.strftime("%Y-%m-%d %H:%M %Z"))


def _terminal() -> HealthFinding:
    encoding = (sys.stdout.encoding or "unknown").lower()
    if encoding.replace("-", "") != "utf8":
        fix = "set LC_ALL=C.UTF-8, or PYTHONUTF8=1"
        return HealthFinding(
            "terminal", "warning", f"it takes {encoding}: names and bars may be lost", fix
        )
    return HealthFinding("terminal", "ok", "UTF-8")


def installed(package: str) -> str | None:
    """The version of a package, if there is one."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def requirements(package: str) -> list[tuple[str, str, str]]:
    """Name, versions wanted and extra ("" for none) of everything that a package asks
    for on every system.
    """
    needs = []
    for line in metadata.requires(package) or []:
        wanted, _, marker = line.partition(";")
        extra = re.search(r"extra\s*==\s*['\"]([\w-]+)['\"]", marker)
        name = re.match(r"[\w.-]+", wanted.strip())
        if name and (not marker.strip() or extra):
            versions = re.sub(r"\[.*?\]|[()\s]", "", wanted.strip()[name.end() :])
            needs.append((name[0], versions, extra[1] if extra else ""))
    return needs


def unmet(package: str) -> Mapping[str, str]:
    """What a package asks for and does not get: installed name and version -> requirement."""
    wrong: dict[str, str] = {}
    for name, versions, extra in requirements(package):
        version = installed(name)
        if not extra and (version is None or not fits(version, versions)):
            wrong[f"{name} {version or 'nothing'}"] = f"{name}{versions}"
    return wrong


_COMPARED: dict[str, Callable[[list[int], list[int]], bool]] = {
    ">=": lambda a, b: a >= b,
    "<=": lambda a, b: a <= b,
    ">": lambda a, b: a > b,
    "<": lambda a, b: a < b,
    "==": lambda a, b: a == b,
    "!=": lambda a, b: a != b,
}


def fits(version: str, wanted: str) -> bool:
    """Whether a version is one of those wanted, such as `>=0.12,<0.21`; forms that are
    rare are taken as fitting.
    """
    for one in filter(None, wanted.split(",")):
        sign = re.match(r"[<>=!~]+", one)
        compared = _COMPARED.get(sign[0]) if sign else None
        if (
            sign
            and compared
            and not one.endswith("*")
            and not compared(*_align(version, one[sign.end() :]))
        ):
            return False
    return True


def _align(first: str, second: str) -> tuple[list[int], list[int]]:
    a, b = numbers(first), numbers(second)
    size = max(len(a), len(b))
    return a + [0] * (size - len(a)), b + [0] * (size - len(b))


def numbers(version: str) -> list[int]:
    """`2.13.0+cpu` -> [2, 13, 0]"""
    return [int(part) for part in re.findall(r"\d+", version.partition("+")[0])]
