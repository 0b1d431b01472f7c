"""The order of the files: those that take longest first, so that none of them is left to one
worker at the end, while the others have nothing to do. And names that end with their file.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path

import pytest

import fedblocks as fb

gc.disable()  # until all tests are known: what is imported and collected stays
HERE = Path(__file__).parent
# by their seconds of CPU; those that mostly wait (federations, ranks that are killed) lie apart,
# so that the cores have something to do meanwhile
LONGEST = (
    "flower/test_deployment.py",  # waits
    "flower/test_deployed_attacks.py",  # waits
    "contract/test_contract.py",
    "contract/test_adapters.py",
    "contract/test_engines_agree.py",
    "docs/test_site.py",
    "contract/test_starts.py",
    "oracles/test_fedmn.py",
    "nets/test_zoo.py",
    "runs/test_way_in.py",
    "export/test_export.py",
    "flower/test_foreign_app.py",  # waits
    "contract/test_sequences.py",
    "docs/test_site_examples.py",
    "engines/test_replayed.py",
    "cli/test_new.py",
    "flower/test_service.py",  # waits
    "core/test_augmentations.py",
    "engines/test_lanes.py",
    "hub/test_models.py",
    "oracles/test_modules.py",
    "ranks/test_ends.py",  # waits
    "recipes/test_halving.py",
    "runs/test_resume.py",
    "tasks/test_every_method.py",
    "cli/test_quickstart.py",
    "flower/test_superlink.py",  # waits
    "cli/test_commands.py",
    "docs/test_notebooks.py",
    "data/sets/test_real_images.py",
    "oracles/test_stored_runs.py",
    "browser/test_report_page.py",
    "flower/test_kills.py",  # waits
)


# What `make test` leaves to `make test-rest`: recipes, studies, libraries of others, browsers,
# timing, mutants; the site with its examples and notebooks; scaffolds; large data sets, streams and
# augmentations; methods on sequences, over adapters and from other starts; torch's layers one by
# one; copies that start alike; exported models with all options; generated pages; processes that
# mostly wait for each other.
REST = (
    *("bench", "browser", "hub", "mutants", "recipes", "studies"),
    *("docs/test_site.py", "docs/test_site_examples.py", "docs/test_notebooks.py"),
    *("docs/test_examples.py", "cli/test_new.py", "cli/test_quickstart.py", "tasks/test_scikit.py"),
    *("data/sets/test_real_images.py", "data/test_streaming.py", "core/test_augmentations.py"),
    *("contract/test_sequences.py", "contract/test_adapters.py", "contract/test_starts.py"),
    *("ranks/test_ends.py", "ranks/test_faults.py", "tasks/test_runs.py"),
    *("export/test_any_option.py", "export/test_merged.py", "docs/test_generated.py"),
    *("ranks/test_resume.py", "nets/test_torch_layers.py", "methods/test_equal_starts.py"),
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    rest = [HERE / name for name in REST]
    assert all(path.exists() for path in rest), "tests/conftest.py names a file that is gone"
    for item in items:
        if any(item.path.is_relative_to(path) for path in rest):
            item.add_marker(pytest.mark.rest)
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
    gc.enable()
