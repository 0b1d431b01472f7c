"""Checks every link of the built site without a network: `python docs/check_links.py build/docs`.

A link inside the site must lead to a file, and to a place in it where it names one; a link outside
must be https and name a host. Whatever a page loads by itself (scripts, styles, pictures) must come
from the site.
"""

from __future__ import annotations

import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

LOADED = {"script": "src", "img": "src", "link": "href", "iframe": "src", "source": "src"}


class Page(HTMLParser):
    """The places of a page that can be linked to, its links, and what it loads."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.places: set[str] = set()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        arguments = {name: value for name, value in attrs if value is not None}
        self.places |= {arguments[name] for name in ("id", "name") if name in arguments}
        if tag == "a" and "href" in arguments:
            self.links.append(arguments["href"])
        if (name := LOADED.get(tag)) in arguments:
            self.loads.append(arguments[name])


def problems(site: Path) -> list[str]:
    """What is wrong, a line for each link."""
    pages = {path: Page(path) for path in sorted(site.rglob("*.html"))}
    if not pages:
        return [f"{site} holds no page"]
    actual = []
    for path, page in pages.items():
        wrong = [text for link in page.links if (text := broken(path, link, pages))]
        wrong += [f"loads {link} from elsewhere" for link in page.loads if urlsplit(link).netloc]
        wrong += [
            text
            for link in page.loads
            if not urlsplit(link).netloc and (text := broken(path, link, pages))
        ]
        actual += [f"{path.relative_to(site)}: {text}" for text in wrong]
    return actual


def broken(path: Path, link: str, pages: dict[Path, Page]) -> str:
    """Why a link leads nowhere, or nothing."""
    parts = urlsplit(link)
    if parts.scheme or parts.netloc:
        good = parts.scheme == "https" and "." in parts.netloc
        return "" if good else f"{link} is not an https address"
    target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
    target = target / "index.html" if target.is_dir() else target
    if not target.is_file():
        return f"{link} leads to no file"
    place = unquote(parts.fragment)
    known = pages.get(target)
    return (
        f"{link} leads to no place on that page"
        if place and known and place not in known.places
        else ""
    )


def main() -> None:
    site = Path(sys.argv[1]).resolve()
    actual = problems(site)
    sys.exit("\n".join([*actual, f"{len(actual)} links are broken"]) if actual else 0)


if __name__ == "__main__":
    main()
