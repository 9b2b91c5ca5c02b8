"""The page's colours can be read: contrast by WCAG 2.2's formula, in both themes."""

from __future__ import annotations

import re

import pytest

from tests.service.dashboard.stub_service import STATIC

CSS = (STATIC / "style.css").read_text()
DARK, LIGHT_BY_SYSTEM, LIGHT_BY_BUTTON = (
    dict(re.findall(r"(--[\w-]+): (#[0-9a-f]{6});", block)) for block in re.findall(r"--scheme: \w+;[^}]+", CSS)
)
TEXT_ON_GROUND = [
    *((colour, "--panel") for colour in ("--text", "--muted", "--flame", "--up", "--down", "--flat", "--other")),
    ("--text", "--page"),
    ("--muted", "--page"),
    ("--panel", "--flame"),
    ("--bad-text", "--bad"),
    ("--warn-text", "--warn"),
    ("--info-text", "--info"),
]


def luminance(colour: str) -> float:
    """Return the relative luminance of `#rrggbb`, by https://www.w3.org/TR/WCAG22/#dfn-relative-luminance."""
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    high, low = sorted((luminance(one), luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("theme", [DARK, LIGHT_BY_SYSTEM], ids=["dark", "light"])
@pytest.mark.parametrize(("text", "ground"), TEXT_ON_GROUND)
def test_text_has_a_contrast_of_at_least_4_5(theme: dict[str, str], text: str, ground: str) -> None:
    assert contrast(theme[text], theme[ground]) >= 4.5


def test_light_is_the_same_by_system_and_by_button() -> None:
    assert LIGHT_BY_SYSTEM == LIGHT_BY_BUTTON
    assert set(LIGHT_BY_SYSTEM) == set(DARK)


def test_nothing_is_inline_that_the_content_policy_refuses() -> None:
    html = (STATIC / "index.html").read_text()
    assert not re.search(r"\sstyle=|\son\w+=|<style|<script(?![^>]*\bsrc=)", html)
    assert not re.search(r"(?:src|href)=\"https?://(?!www\.tradingview\.com/\")", html)
