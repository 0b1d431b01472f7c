"""What a report of a Python run says of clients who are badly served, and what it calls them."""

import numpy as np
import pytest
from torch import nn

import fedblocks as fb
from fedblocks.reports.html.gather import Story, gather
from fedblocks.reports.html.page import Content
from fedblocks.reports.html.results import client_name, result_charts, worst_clients

CLIENTS = 20
NAMES = [f"ward {chr(97 + client)}" for client in range(CLIENTS)]


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Story:
    """A regression, in which less is better, whose clients differ in how hard they are."""
    rng = np.random.default_rng(0)
    users = np.arange(CLIENTS * 10) % CLIENTS
    x = rng.normal(size=(len(users), 3)).astype("float32")
    y = rng.normal(size=len(users)) * (1 + users)
    data = fb.Federation.from_users(x, y, np.array(NAMES)[users], task="regression")
    folder = tmp_path_factory.mktemp("runs") / "one"
    fb.run(fb.FedAvg(fb.Net.of(lambda: nn.Linear(3, 1)), lr=0.01), data, rounds=1, out=folder)
    return gather(folder)


def test_the_bottom_decile_is_the_same_in_all_tables_where_less_is_better(story: Story) -> None:
    chart = next(chart for chart in result_charts(story) if chart.id == "distribution")
    row = dict(zip(chart.columns, chart.rows[0], strict=True))
    errors = sorted(story.first.scores.values(), reverse=True)
    assert row["bottom decile"] == errors[CLIENTS // 10]
    assert row["bottom decile"] == story.first.result.summary()["bottom_decile"]
    values = list(row.values())[3:]
    assert values == sorted(values)  # the columns go from the lowest to the highest


def test_a_report_calls_clients_by_the_names_on_record(story: Story) -> None:
    assert story.federation is None  # a Python run's data cannot be made again
    assert [client_name(story, client, story.first) for client in range(CLIENTS)] == NAMES
    assert {row[2] for row in worst_clients(story)} <= {*NAMES}


def test_a_report_without_local_says_what_can_be_done_from_python_too(story: Story) -> None:
    assert "There is no Local run here" in Content.of(story).html()
    assert "compare with the method Local" in Content.of(story).html()
    assert "fedblocks compare" not in Content.of(story).html().split("no Local run here")[1][:200]
