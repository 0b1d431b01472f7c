"""Hashes of the final states of some short runs: a change that only moves code must leave all of
them as they are.

`python studies/state_hashes.py results/state-hashes.json` compares; with `--store` it writes the
file. Bits depend on the machine's arithmetic, so compare on the machine that the file was written
on.
"""

from __future__ import annotations

import json
import platform
import sys
import tempfile
from hashlib import sha256
from pathlib import Path

import torch

import fedblocks

PRESETS = tuple(
    f"digits-{name}" for name in ("fedavg", "pfedmb", "fedmn", "modfl", "flow", "ifca", "ditto")
)
ENGINES = ("sequential", "vectorised")


def state_hash(preset: str, engine: str, folder: Path) -> str:
    changes = ["rounds=3", "threads=1", f'engine="{engine}"', 'device="cpu"', "evaluation.every=3"]
    result = fedblocks.run(fedblocks.read_config(preset, changes), folder / f"{preset}-{engine}")
    state, digest = result.state(), sha256()
    homes = {
        "server": state.server,
        **{f"client {c}": state.private[c] for c in sorted(state.private)},
    }
    for home, blocks in homes.items():
        for block in sorted(blocks):
            for name, value in sorted(blocks[block].items()):
                digest.update(f"{home}/{block}/{name}".encode())
                digest.update(value.detach().cpu().contiguous().numpy().tobytes())
    digest.update(json.dumps(sorted(result.accuracies().items())).encode())
    return digest.hexdigest()


def main(path: Path, store: bool) -> int:
    with tempfile.TemporaryDirectory() as folder:
        hashes = {f"{p}/{e}": state_hash(p, e, Path(folder)) for p in PRESETS for e in ENGINES}
    if store:
        about = {"torch": torch.__version__, "cpu": platform.processor() or platform.machine()}
        path.write_text(json.dumps({"about": about, "hashes": hashes}, indent=1) + "\n")
    stored = json.loads(path.read_text())["hashes"]
    differing = [name for name, value in hashes.items() if stored.get(name) != value]
    print(
        f"{len(hashes) - len(differing)} of {len(hashes)} states are the same to the bit",
        *differing,
        sep="\n  ",
    )
    return len(differing)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), "--store" in sys.argv))
