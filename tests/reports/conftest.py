"""The story of six runs that were never trained, written once."""

import pytest

from fedblocks.reports.html.gather import Story
from tests.reports import stories


@pytest.fixture(scope="package")
def story(tmp_path_factory: pytest.TempPathFactory) -> Story:
    return stories.write_all(tmp_path_factory.mktemp("runs") / "all")
