"""Versions of packages and of CUDA, read without importing torch."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Callable, Mapping
from importlib import metadata, util
from pathlib import Path


def version_of(package: str) -> str | None:
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
        name = re.match(r"[\w.-]+", wanted)
        if name and (not marker.strip() or extra):
            versions = re.sub(r"\[.*?\]|[()\s]", "", wanted[name.end() :])
            needs.append((name[0], versions, extra[1] if extra else ""))
    return needs


def unmet(package: str) -> Mapping[str, str]:
    """What a package asks for and does not get: installed name and version -> requirement."""
    wrong: dict[str, str] = {}
    for name, versions, extra in requirements(package):
        version = version_of(name)
        if not extra and (version is None or not fits(version, versions)):
            wrong[f"{name} {version or 'nothing'}"] = f"{name}{versions}"
    return wrong


_COMPARISONS: dict[str, Callable[[list[int], list[int]], bool]] = {
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
        compare = _COMPARISONS.get(sign[0]) if sign else None
        if sign is None or compare is None or one.endswith("*"):
            continue
        if not compare(*_align(version, one[sign.end() :])):
            return False
    return True


def _align(first: str, second: str) -> tuple[list[int], list[int]]:
    """The numbers of two versions, the shorter one filled up with zeros."""
    a, b = numbers(first), numbers(second)
    size = max(len(a), len(b))
    return a + [0] * (size - len(a)), b + [0] * (size - len(b))


def numbers(version: str) -> list[int]:
    """`2.13.0+cpu` -> [2, 13, 0]"""
    return [int(part) for part in re.findall(r"\d+", version.partition("+")[0])]


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
