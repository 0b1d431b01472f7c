"""The order of the files: those that take longest first, so that none of them is left to one
worker at the end, while the others have nothing to do.
"""

from __future__ import annotations

import gc
from pathlib import Path

import pytest

HERE = Path(__file__).parent
# the first ones mostly wait, and the others have the cores meanwhile
LONGEST = (
    "flower/test_deployment.py",
    "docs/test_site.py",
    "runs/test_way_in.py",
    "cli/test_new.py",
    "flower/test_foreign_app.py",
    "flower/test_service.py",
    "runs/test_resume.py",
    "recipes/test_halving.py",
    "cli/test_quickstart.py",
    "data/sets/test_real_images.py",
    "oracles/test_stored_runs.py",
    "browser/test_report_page.py",
    "flower/test_superlink.py",
    "docs/test_notebooks.py",
    "contract/test_contract.py",
    "contract/test_starts.py",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    ranks = {HERE / name: rank for rank, name in enumerate(LONGEST)}
    assert all(path.is_file() for path in ranks), "tests/conftest.py names a file that is gone"
    items.sort(key=lambda item: ranks.get(item.path, len(ranks)))


def pytest_collection_finish() -> None:
    gc.collect()
    gc.freeze()  # half a million imported objects stay; the collector need not visit them again
