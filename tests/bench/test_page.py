"""The page about speed says what the stored results say."""

from __future__ import annotations

import json

from fedblocks.bench.page import with_results

ENV = {
    "devices": [],
    "cpu": "A CPU",
    "cpu_count": 2,
    "threads": 1,
    "python": "3.11.2",
    "platform": "Linux",
    "versions": {"torch": "2.13.0"},
    "command": ["fedblocks", "bench", "J7"],
}
RESULT = {
    "job": "J7",
    "cohort": 64,
    "speedup": 2.5,
    "cpu_speedup": 1.25,
    "share_of_floor": 0.125,
    "ours": {
        "who": "processes",
        "median_seconds": 0.2,
        "examples_per_second": 51200.4,
        "peak_bytes": 300 * 2**20,
    },
    "plain": {"median_seconds": 0.5},
}
PAGE = (
    "before\n<!-- bench:cpu -->\nold\n<!-- /bench -->\nafter\n<!-- bench:gone -->\n<!-- "
    "/bench -->\n"
)


def test_a_table_stands_where_the_page_asks_for_it_and_nothing_else_changes(tmp_path) -> None:
    actual = {"env": ENV, "load": 3.25, "results": [RESULT], "skipped": {"J2/x": "no"}}
    (tmp_path / "bench-cpu.json").write_text(json.dumps(actual))
    page = with_results(PAGE, tmp_path)
    assert "| J7 | processes | 64 | 0.200 | 0.500 | 2.50 | 1.25 | 51,200 | 12 % | 300 |" in page
    assert (
        "A CPU, 2 cores; torch 2.13.0, Python 3.11.2, Linux; 1 threads, load average 3.2 at the "
        "end." in page
    )
    assert (
        "`fedblocks bench J7`, stored in `results/bench-cpu.json`" in page
        and "J2/x left out: no" in page
    )
    assert "old" not in page and page.startswith("before\n") and "\nafter\n" in page
    assert "Not measured yet: there is no `results/bench-gone.json`." in page
    assert with_results(page, tmp_path) == page


def test_methods_are_put_beside_fedavg_by_time_and_arithmetic(tmp_path) -> None:
    fedavg = {**RESULT, "job": "J2/fedavg", "flops_per_example": 100.0}
    twice = {
        **RESULT,
        "job": "J2/ditto",
        "flops_per_example": 200.0,
        "ours": {**RESULT["ours"], "median_seconds": 0.5},
    }
    actual = {"env": ENV, "results": [fedavg, twice], "skipped": {}}
    (tmp_path / "bench-cpu.json").write_text(json.dumps(actual))
    page = with_results(PAGE, tmp_path)
    assert "| 300 | 1.00 |" in page
    assert "| 300 | 1.25 |" in page  # (0.5 s / 0.2 s) / (200 / 100 operations)


def test_lanes_alone_need_no_table(tmp_path) -> None:
    lanes = {
        "lanes": 12,
        "clients": 10,
        "one_seconds": [0.01],
        "all_seconds": [0.05],
        "times_one": 5.0,
        "gain": 2.4,
    }
    (tmp_path / "bench-cpu.json").write_text(
        json.dumps({"env": ENV, "results": [], "skipped": {}, "lanes": lanes})
    )
    page = with_results(PAGE, tmp_path)
    assert (
        "12 lanes of 10 clients take 50.0 ms a round, one 10.0 ms" in page and "| job |" not in page
    )


def test_nets_of_the_zoo_have_a_line_each(tmp_path) -> None:
    net = {
        "net": "vit",
        "pairs": 5,
        "loop_ms": 6243.4,
        "ours_ms": 6495.2,
        "times_the_loop": 0.94,
        "half_between": [0.91, 1.02],
    }
    env = {**ENV, "command": ["zoo_rounds.py", "zoo.json"]}
    (tmp_path / "bench-cpu.json").write_text(json.dumps({"env": env, "nets": [net]}))
    page = with_results(PAGE, tmp_path)
    assert "| vit | 6,243 | 6,495 | 0.94 | 0.91 to 1.02 | 5 |" in page
    assert "`python studies/zoo_rounds.py zoo.json`, stored in" in page
