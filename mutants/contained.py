"""A mutant may end all processes that it can see, and delete all files that it can write.

So it runs in Linux namespaces of its own: it sees no other processes, and all files but those of
its copy are read-only.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

INSIDE = """
copy=$1; shift
mount --bind "$copy" "$copy" || exit 1
while read -r _ place _; do
    case $place in
        /proc*|/sys*|/dev*|"$copy") ;;
        *) mount -o remount,bind,ro "$place" || exit 1 ;;
    esac
done < /proc/mounts
mount -t tmpfs tmpfs /dev/shm || exit 1
cd "$copy" && exec "$@"
"""
APART = ["--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]


def contained(command: list[str], copy: Path) -> list[str]:
    """The same command, where it sees only its own processes and writes only to its copy."""
    if shutil.which("unshare") is None:
        raise RuntimeError("mutants need Linux and its command unshare: they are not safe without")
    user = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
    return ["unshare", *user, *APART, "sh", "-c", INSIDE, "sh", str(copy), *command]


def check_contained() -> None:
    """Refuse to go on where harm could be done; the first process of a space has the number 1."""
    if os.getpid() != 1:
        raise RuntimeError("a worker plants mutants only in a space of its own (contained.py)")
