"""A real browser, headless, that notes what a page asks for, complains of and tries;
and a comparison to show it.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedblocks import Federation
from fedblocks.data.federation import Parts
from fedblocks.reports.compare import compare

CHROMIUM = (
    shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
)
PICTURES = Path(__file__).parents[2] / "build" / "screenshots"
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--no-first-run"]
HOSTILE = "</script><script>window.hacked=1;alert(1)</script><img src=x onerror=window.hacked=2>"
METHODS = ["pfedmb", "ifca", "fedmn", "flow"]


@dataclass
class Seen:
    """A page, and what it did."""

    page: Any
    requests: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    dialogs: list[str] = field(default_factory=list)

    def goto(self, url: str) -> None:
        self.page.goto(url)
        self.page.wait_for_selector("html[data-ready=yes]")

    def picture(self, name: str) -> None:
        """Kept for people to look at."""
        PICTURES.mkdir(parents=True, exist_ok=True)
        self.page.screenshot(path=PICTURES / f"{name}.png", full_page=True)

    def until(self, condition: str) -> None:
        """Wait for something; the browser's own way to wait would need a page that
        evaluates text.
        """
        for _ in range(400):
            if self.page.evaluate(condition):
                return
            self.page.wait_for_timeout(50)
        raise AssertionError(f"it never came to be that {condition}")

    def text(self, selector: str) -> str:
        """The words of one element."""
        return str(self.page.locator(selector).inner_text())


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Until the end of a file: while it is open, an event loop runs in this thread, and tests of
    other files start their own.
    """
    api = pytest.importorskip(
        "playwright.sync_api", reason="the browser tests need the package playwright"
    )
    if CHROMIUM is None:
        pytest.skip("the browser tests need Chromium (Debian: apt install chromium)")
    with api.sync_playwright() as driver:
        started = driver.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield started
        started.close()


@pytest.fixture(scope="module")
def seen(browser: Any) -> Iterator[Seen]:
    """A new page with an empty profile; the tests of a module go on with it, for
    opening a page is slow.
    """
    context = browser.new_context(viewport={"width": 1300, "height": 900}, color_scheme="light")
    actual = Seen(context.new_page())
    actual.page.on("request", lambda request: actual.requests.append(request.url))
    actual.page.on("pageerror", lambda error: actual.errors.append(str(error)))
    actual.page.on(
        "console",
        lambda line: actual.errors.append(line.text) if line.type in ("error", "warning") else None,
    )
    actual.page.on(
        "dialog", lambda dialog: (actual.dialogs.append(dialog.message), dialog.dismiss())
    )
    yield actual
    context.close()


@pytest.fixture(scope="session")
def comparison(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Six clients in two groups, whose names, like that of the folder, are attacks;
    three rounds of several methods.
    """
    home, rng = tmp_path_factory.mktemp("pages"), np.random.Generator(np.random.PCG64(0))
    parts = []
    for client in range(6):
        drawn = [rng.normal(size=(n, 6)).astype("float32") for n in (24, 8, 12)]
        parts.append(Parts(*((x, (client % 2 + (x[:, 0] > 0)) % 3) for x in drawn)))
    built = Federation.from_parts(parts, names=[f"{HOSTILE}{i}" for i in range(6)], classes=3)
    replace(built, tags={"kind": np.arange(6) % 2}).save(home / "f.npz")
    pool = "modules = [2, 2, 2]\nwidths = [6, 5]\nsummary_width = 4\nlabel_width = 3\n"
    (home / "c.toml").write_text(
        'rounds = 3\nengine = "sequential"\nnet = {name = "mlp", hidden = [5]}\n'
        f'[data]\nname = "saved"\noptions = {{path = "{home}/f.npz"}}\n'
        f'[checkpoint]\nevery = 3\n[method]\nname = "fedmn"\nlr = 0.3\nbatch_size = 8\n{pool}'
    )
    return compare(str(home / "c.toml"), METHODS, 1, home / "<img src=x onerror=alert(3)>").folder
