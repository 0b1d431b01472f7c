"""The live page in a real browser: it renews itself while a run goes on, and readers
keep their place.
"""

from __future__ import annotations

import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from threading import Thread

import pytest

from fedblocks import read_config
from fedblocks.runs.storage.folder import RunFolder
from fedblocks.runs.storage.record import ClientMetric, RefusalRow, RoundRecord, Snapshot, Traffic

from .conftest import HOSTILE, Seen

POINTS = "document.getElementById('curve-round').data[0].x.length"


def record(round: int) -> RoundRecord:
    """A round of four clients, as a run would store it."""
    metrics = [
        ClientMetric("test", "personal", c, float(3 + c + round), 20.0, 1.0) for c in range(4)
    ]
    snapshots = [Snapshot("choice", c, [float(c % 2), 1.0 - c % 2, 0.1 * round]) for c in range(4)]
    traffic = [Traffic(c, "model", "up", 1000) for c in range(4)]
    refusals = [RefusalRow(1, "not finite", HOSTILE)] if round == 2 else []
    return RoundRecord(round, 0.5, 4, metrics, traffic, refusals, snapshots)


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunFolder]:
    """A run of this very process, which is alive."""
    config = read_config("digits-pfedmb", ["rounds=9", "data.clients=4"])
    with RunFolder.create(
        tmp_path_factory.mktemp("w") / HOSTILE.replace("/", ""), config.resolved(), {}
    ) as folder:
        folder.store.record_round(record(1))
        yield folder


@pytest.fixture(scope="module")
def url(running: RunFolder) -> Iterator[str]:
    pytest.importorskip(
        "starlette", reason="watching needs starlette: pip install 'fedblocks[dashboard]'"
    )
    pytest.importorskip("plotly", reason="the page needs plotly: pip install 'fedblocks[report]'")
    from fedblocks.watch.server import Live

    live = Live(running.path)
    server = live.server()
    thread = Thread(target=server.run, kwargs={"sockets": [live.socket]}, daemon=True)
    thread.start()
    yield live.url
    server.should_exit = True
    thread.join(10)


@pytest.fixture(scope="module")
def live(seen: Seen, url: str) -> Seen:
    seen.goto(url)
    return seen


def test_a_new_round_appears_by_itself_and_readers_keep_their_place(
    live: Seen, running: RunFolder
) -> None:
    live.until("document.getElementById('live').textContent.startsWith('running: round 1 of 9')")
    assert live.page.evaluate(POINTS) == 1
    live.page.locator("#charts-section summary").first.press("Enter")
    live.page.locator("#theme").press("Enter")
    live.page.locator("#charts-section summary").first.focus()
    running.store.record_round(record(2))
    live.until(f"{POINTS} === 2")
    assert live.text("#live").startswith("running: round 2 of 9")
    assert live.page.locator("#charts-section details").first.get_attribute("open") is not None
    assert live.page.evaluate("document.activeElement.textContent") == "Table: Accuracy over rounds"
    assert live.page.evaluate("document.documentElement.dataset.theme") == "dark"
    assert HOSTILE in live.page.locator("#refused").inner_html().replace("&lt;", "<").replace(
        "&gt;", ">"
    )


def test_a_slider_that_was_moved_stays_and_one_at_the_end_follows(
    live: Seen, running: RunFolder
) -> None:
    live.page.locator("input[data-chart=map-1]").press("Home")
    running.store.record_round(record(3))
    live.until(f"{POINTS} === 3")
    message = "label:has([data-chart=map-1]) output"
    assert live.text(message) == "round 1"
    live.page.locator("input[data-chart=map-1]").press("End")
    running.store.record_round(record(4))
    live.until(f"{POINTS} === 4")
    assert live.text(message) == "round 4"


def test_the_end_of_a_run_is_told(live: Seen, running: RunFolder) -> None:
    running.set_status("failed")
    live.until("document.getElementById('live').textContent.startsWith('failed: round 4 of 9')")
    live.picture("watch-dark")


def test_it_asks_only_the_server_it_came_from_and_complains_of_nothing(
    live: Seen, url: str
) -> None:
    assert all(address.startswith((url, "data:", "blob:")) for address in live.requests)
    assert live.errors == [] and live.dialogs == [] and live.page.evaluate("window.hacked") is None


def test_who_does_not_know_the_token_sees_nothing(url: str) -> None:
    root = url.rsplit("/", 2)[0]
    for path in ("/", "/guess/", "/guess/events", f"/{Path(url).name}", "/../etc/passwd"):
        with pytest.raises(urllib.error.HTTPError) as error:
            urllib.request.urlopen(f"{root}{path}")
        assert error.value.code == 404 and b"nothing here" in error.value.read()
