"""The page of results: what it shows of a table and of a figure."""

import json
from pathlib import Path
from typing import Any

from fedblocks.recipes import recipe_named
from fedblocks.recipes.page import reproduction_page
from fedblocks.runs.refusals import Refused

HEAD: dict[str, Any] = {"paper": "Nobody", "unit": "%", "stand_in_for": None, "notes": ["A note."]}
HEAD |= {"versions": {"fedblocks": "0.1.0", "torch": "2"}, "devices": ["cpu"]}


def seeds(*values: float) -> dict[str, Any]:
    return {str(number): {"value": value, "seconds": 1.0} for number, value in enumerate(values)}


def test_a_table_has_settings_side_by_side_and_a_figure_a_line_for_each_point(
    tmp_path: Path,
) -> None:
    # half widths by hand: Student's 12.706 x 1.4142 / sqrt 2 = 12.71 for 70 and 72
    cells = {
        "a-15/fedavg": {"published": 71.5, "tuning": [], "seeds": seeds(70.0, 72.0)},
        "a-50/fedavg": {"published": 60.0, "tuning": [], "seeds": seeds(61.0)},
        "a-15/local": {"published": 65.0, "tuning": [], "seeds": {}},
    }
    table = {
        "recipe": "x-table1",
        "title": "A table",
        "shape": "table",
        "quick": False,
        "cells": cells,
        **HEAD,
    }
    figure = {
        "recipe": "x-figure2-own",
        "title": "A figure",
        "shape": "figure",
        "quick": True,
        **HEAD,
    }
    figure |= {
        "stand_in_for": "x-figure2",
        "cells": {"a/8": {"published": None, "tuning": [], "seeds": seeds(5.0)}},
    }
    for one in (table, figure):
        (tmp_path / f"{one['recipe']}.json").write_text(json.dumps(one))
    (tmp_path / "bench.json").write_text(json.dumps([{"no": "recipe"}]))
    text = reproduction_page(tmp_path)
    first = (
        "71.00 ± 12.71 (published 71.50, within noise) | 61.00 (published 60.00, 1 seed: "
        "noise unknown)"
    )
    assert "ours minus published" not in text  # one method with a number is no pattern
    assert f"| fedavg | {first} |" in text and "| local | - | - |" in text
    assert "### x-figure2-own, a stand-in for x-figure2" in text and "| a/8 | 5.00 | 1 |" in text
    assert text.index("x-table1") < text.index("## Scaled down") < text.index("x-figure2-own")


def test_a_shift_that_all_methods_share_is_named(tmp_path: Path) -> None:
    # 71 - 71.5 and 61 - 64: -0.5 and -3
    cells = {
        "a/fedavg": {"published": 71.5, "tuning": [], "seeds": seeds(70.0, 72.0)},
        "a/local": {"published": 64.0, "tuning": [], "seeds": seeds(61.0)},
        "b/local": {"published": None, "tuning": [], "seeds": seeds(61.0)},
    }
    table = {"recipe": "x-table1", "title": "A table", "shape": "table", "quick": False, **HEAD}
    (tmp_path / "x.json").write_text(json.dumps({**table, "cells": cells}))
    text = reproduction_page(tmp_path)
    words = "a: ours minus published is -1.8 on average over 2 rows, from -3.0 to -0.5."
    assert f"- {words}" in text and "- b: ours" not in text
    assert "3 of 3 cells, 0.1 minutes of cpu." in text  # four runs of a second
    assert "were refused" not in text
    assert "![A table](_static/reproduction-x-table1.svg)" in text


def test_cells_that_nobody_began_count_too_and_so_do_those_of_scaled_tables(
    tmp_path: Path,
) -> None:
    own = {"published": 64.0, "tuning": [], "seeds": seeds(61.0)}
    cells = {"c10-dir-50/local": own, "c10-gone/local": own}  # the recipe has the first one only
    table = {"recipe": "pfedmb-table2", "title": "A table", "shape": "table", **HEAD}
    recipe = recipe_named("pfedmb-table2")
    for quick, count in ((False, len(recipe.cells)), (True, sum(c.in_quick for c in recipe.cells))):
        (tmp_path / "x.json").write_text(json.dumps({**table, "quick": quick, "cells": cells}))
        assert f"2 of {count + 1} cells" in reproduction_page(tmp_path)


def test_a_run_that_ended_with_a_warning_is_named(tmp_path: Path) -> None:
    own = seeds(70.0, 72.0)
    refused = Refused(9, 2500, 0, 5, "not-finite: (a) NaN", clients=(*range(9),))
    own["1"]["warning"] = refused.warning
    cells = {"a/fedavg": {"published": None, "tuning": [], "seeds": own}}
    table = {"recipe": "x-table1", "title": "A table", "shape": "table", "quick": False, **HEAD}
    (tmp_path / "x.json").write_text(json.dumps({**table, "cells": cells}))
    text = reproduction_page(tmp_path)
    words = "9 of 2500 updates were refused (9 clients; the latest: not-finite: (a) NaN)"
    assert refused.warning.startswith(f"{words}; look for")
    assert f"- a/fedavg, seed 1: {words}.\n" in text
    assert "look for" not in text and "a/fedavg, seed 0" not in text
