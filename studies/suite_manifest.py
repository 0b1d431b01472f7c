"""Write the hashes of the suite's federations, for the seeds of reports and of held-out variants.

    FEDBLOCKS_DATA=... python studies/suite_manifest.py

Beds whose data are absent keep what is written already.
"""

from __future__ import annotations

import json
from pathlib import Path

from fedblocks.config.model import Config
from fedblocks.recipes.suite import manifest
from fedblocks.recipes.suite.beds import BEDS, VERSION
from fedblocks.recipes.suite.entrants import HELD_OUT, Entrant, default_cell
from fedblocks.recipes.suite.trial import absent_beds
from fedblocks.runs.federations import federation_of

SEEDS = 6


def main() -> None:
    path = Path(manifest.__file__).with_name("manifest.json")
    hashes = {name: dict(own) for name, own in manifest.federations().items()}
    absent = absent_beds(BEDS.values())
    for bed in BEDS.values():
        for first in (0, HELD_OUT):
            cell = default_cell(Entrant("fedavg"), bed, held_out=first == HELD_OUT)
            for seed in range(SEEDS if bed.name not in absent else 0):
                data = federation_of(Config.of(cell.table({}, seed)))
                own = hashes.setdefault(bed.name, {})
                own[str(first + seed)] = data.hash()[: manifest.HASH]
        print(bed.name, "absent" if bed.name in absent else hashes[bed.name], flush=True)
    table = {"version": VERSION, "manifest": manifest.manifest_hash(), "federations": hashes}
    path.write_text(json.dumps(table, indent=1) + "\n")


if __name__ == "__main__":
    main()
