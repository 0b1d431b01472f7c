"""Labels that are words stand in reports by their words."""

from pathlib import Path

import numpy as np
import pytest

from fedblocks.cli import main

CONFIG = """
rounds = 1
[data]
name = "csv"
options = { path = "roads.csv", label = "road", user = "truck" }
partition = { name = "by_user" }
[net]
name = "mlp"
[method]
name = "pfedmb"
"""


def test_a_report_names_classes_by_their_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    rows = [f"{('motorway', 'field')[k % 2]},{rng.normal():.3f},t{k % 3}" for k in range(60)]
    Path("roads.csv").write_text("\n".join(["road,speed,truck", *rows]))
    Path("roads.toml").write_text(CONFIG)
    for words in (["run", "roads.toml", "--out", "run"], ["report", "run", "--out", "page.html"]):
        with pytest.raises(SystemExit) as ended:
            main(words)
        assert ended.value.code == 0
    assert "label motorway" in Path("page.html").read_text()
