"""The order of the files: those that take longest first, so that none of them is left to one
worker at the end, while the others have nothing to do. And names that end with their file.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path

import pytest

import fedblocks as fb

HERE = Path(__file__).parent
# the first two mostly wait, and the third has their cores; the others by their seconds of CPU
LONGEST = (
    "flower/test_deployment.py",
    "flower/test_deployed_attacks.py",
    "contract/test_contract.py",
    "contract/test_adapters.py",
    "docs/test_site.py",
    "contract/test_starts.py",
    "runs/test_way_in.py",
    "cli/test_new.py",
    "nets/test_zoo.py",
    "export/test_export.py",
    "flower/test_foreign_app.py",
    "flower/test_service.py",
    "flower/test_superlink.py",
    "contract/test_engines_agree.py",
    "engines/test_lanes.py",
    "docs/test_site_examples.py",
    "recipes/test_halving.py",
    "runs/test_resume.py",
    "cli/test_quickstart.py",
    "cli/test_commands.py",
    "docs/test_notebooks.py",
    "data/sets/test_real_images.py",
    "oracles/test_stored_runs.py",
    "browser/test_report_page.py",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    ranks = {HERE / name: rank for rank, name in enumerate(LONGEST)}
    assert all(path.is_file() for path in ranks), "tests/conftest.py names a file that is gone"
    items.sort(key=lambda item: ranks.get(item.path, len(ranks)))


@pytest.fixture(scope="module", autouse=True)
def names_as_before() -> Iterator[None]:
    """What the tests of a file name for configurations, others do not find."""
    names = ("AUGMENTATIONS", "DATASETS", "LOSSES", "METHODS", "METRICS", "NETS", "SAMPLERS")
    tables = [getattr(fb, name) for name in names]
    before = [dict(table) for table in tables]
    yield
    for table, entries in zip(tables, before, strict=True):
        table.clear()
        table.update(entries)


def pytest_collection_finish() -> None:
    gc.collect()
    gc.freeze()  # half a million imported objects stay; the collector need not visit them again
