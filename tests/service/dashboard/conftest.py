"""A real Chromium, watched: any console error, page error or request to another host fails the test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, ConsoleMessage, Page, Request, expect, sync_playwright

from service.dashboard.build import VENDOR

CHROMIUM = Path("/usr/bin/chromium")
QUIET = "--no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking"
QUIET += " --disable-component-update --disable-sync"

PATIENCE_MS = 30_000

OpenPage = Callable[..., Page]


# Not for the whole session: while it is open, its event loop counts as running and asynchronous tests cannot.
@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    if not CHROMIUM.exists():
        pytest.skip(f"the page's tests need Chromium at {CHROMIUM}")
    # Only a failure takes this long; a machine that is busy with other things may need more than the 5 s by default.
    expect.set_options(timeout=PATIENCE_MS)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=QUIET.split())
        yield browser
        browser.close()


@pytest.fixture
def charts_built() -> None:
    if not (VENDOR / "manifest.json").exists():
        pytest.skip("the charts are not built; run: python -m service.dashboard.build")


@pytest.fixture
def open_page(browser: Browser) -> Iterator[OpenPage]:
    """Open an address in a fresh browser profile; what went wrong in it is judged at the end of the test.

    ``expected`` are parts of console messages that the test provokes itself. Name this fixture after the service's, so
    that pages close before what they talk to does.
    """
    troubles: list[str] = []
    contexts = []

    def visit(
        url: str, width: int = 1280, height: int = 800, expected: tuple[str, ...] = (), **options: object
    ) -> Page:
        context = browser.new_context(viewport={"width": width, "height": height}, **options)  # type: ignore[arg-type]
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(PATIENCE_MS)
        host = urlsplit(url).netloc

        def complain(kind: str, text: str) -> None:
            if not any(part in text for part in expected):
                troubles.append(f"{kind}: {text}")

        def hear(message: ConsoleMessage) -> None:
            if message.type == "error":
                complain("console", message.text)

        def watch(request: Request) -> None:
            if urlsplit(request.url).netloc != host:
                complain("request to another host", request.url)

        page.on("console", hear)
        page.on("pageerror", lambda error: complain("page", str(error)))
        page.on("request", watch)
        page.goto(url)
        return page

    yield visit
    for context in contexts:
        context.close()
    assert troubles == []
