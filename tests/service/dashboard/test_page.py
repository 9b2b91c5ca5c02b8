"""The page in a real browser against a scripted service."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from tests.service.dashboard.conftest import OpenPage
from tests.service.dashboard.eventually import eventually
from tests.service.dashboard.stub_service import START, STATIC, StubService, running

pytestmark = pytest.mark.page

NO_SOCKET = ("WebSocket connection",)


@pytest.fixture
def stub() -> Iterator[StubService]:
    with running(StubService()) as stub:
        stub.close_candles(200, tell=False)
        yield stub


def clock(stub: StubService, ahead: int = 0) -> str:
    """The time of day of the candle after the last closed one, plus ``ahead``."""
    seconds = (START // 1000 + len(stub.candles) + ahead) % 86_400
    return f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}"


def following(page: Page, stub: StubService) -> None:
    """Wait until the page shows the stub's newest prediction and its socket is open."""
    expect(page.locator("#next-time")).to_have_text(f"{clock(stub)} UTC")
    eventually(lambda: len(stub.sockets) > 0)


def test_shows_the_prediction_its_interval_and_the_last_result(stub: StubService, open_page: OpenPage) -> None:
    page = open_page(stub.url)
    following(page, stub)
    prediction, step = stub.predictions[-1], stub.steps[-1]
    expect(page.locator("#call-word")).to_have_text(prediction["direction"])
    expect(page.locator("#call-chance")).to_have_text(f"{prediction['p_' + prediction['direction']] * 100:.1f} %")
    expect(page.locator("#odds [data-direction=up] .value")).to_have_text(f"{prediction['p_up'] * 100:.1f} %")
    interval = f"{prediction['close_low']:.2f} – {prediction['close_high']:.2f}"
    expect(page.locator("#next-interval")).to_have_text(interval)
    expect(page.locator("#next-close")).to_contain_text(f"{prediction['close']:.2f}")
    expect(page.locator("#last-result")).to_have_attribute("data-result", "right" if step["correct"] else "wrong")
    expect(page.locator("#last-result")).to_contain_text("✓" if step["correct"] else "✗")
    expect(page.locator("#results")).to_have_attribute("aria-label", _results(stub))


def _results(stub: StubService) -> str:
    judged = [step for step in stub.steps if step["correct"] is not None][-40:]
    return f"{sum(step['correct'] for step in judged)} of the last 40 right"


def test_shows_which_members_of_the_mixture_count(stub: StubService, open_page: OpenPage) -> None:
    page = open_page(stub.url)
    following(page, stub)
    rows = page.locator("#made > div")
    expect(rows).to_have_count(2)
    expect(rows.first).to_contain_text("network")
    expect(rows.first).to_contain_text("70.0 %")


def test_draws_candles_and_forecast(stub: StubService, open_page: OpenPage, charts_built: None) -> None:
    page = open_page(stub.url, color_scheme="dark")
    following(page, stub)
    expect(page.locator("#price-chart canvas").first).to_be_visible()
    up, down, flame = "#5fcaa3", "#f27d6e", "#f4b860"
    eventually(lambda: all(_pixels(page, "#price-chart", colour) > 20 for colour in (up, down, flame)))
    eventually(lambda: _pixels(page, "#loss-chart", flame) > 20 and _pixels(page, "#norm-chart", flame) > 20)


def _pixels(page: Page, chart: str, colour: str) -> int:
    """Count the pixels of exactly this colour in all canvases of a chart."""
    wanted = [int(colour[i : i + 2], 16) for i in (1, 3, 5)]
    count = page.locator(chart).evaluate(
        """(chart, [red, green, blue]) => {
            let found = 0;
            for (const canvas of chart.querySelectorAll("canvas")) {
                if (!canvas.width || !canvas.height) continue;
                const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
                for (let i = 0; i < data.length; i += 4)
                    if (data[i] === red && data[i + 1] === green && data[i + 2] === blue) found++;
            }
            return found;
        }""",
        wanted,
    )
    return int(count)


def test_follows_the_websocket_candle_by_candle(stub: StubService, open_page: OpenPage) -> None:
    page = open_page(stub.url)
    following(page, stub)
    asked = len(stub.requests)
    for _ in range(3):
        stub.close_candles(1)
        expect(page.locator("#next-time")).to_have_text(f"{clock(stub)} UTC")
        expect(page.locator("#recent-table tbody tr").first).to_contain_text(clock(stub, ahead=-1))
        expect(page.locator("#fact-step")).to_have_text(str(len(stub.steps)))
    # Some seconds after the start the page looks once more for what was stored late; it does not ask for every candle.
    assert sum(path.startswith("/candles") for path in stub.requests[asked:]) <= 1


def test_missed_frames_are_fetched_by_rest(stub: StubService, open_page: OpenPage) -> None:
    page = open_page(stub.url)
    following(page, stub)
    stub.close_candles(5, tell=False)
    stub.send_text(json.dumps({"type": "missed", "from": stub.seq + 1, "to": stub.seq + 10}))
    following(page, stub)
    expect(page.locator("#recent-table tbody tr").nth(4)).to_contain_text(clock(stub, ahead=-5))


def test_what_reaches_the_database_late_is_fetched_once_more(stub: StubService, open_page: OpenPage) -> None:
    stub.unwritten = 3
    page = open_page(stub.url)
    eventually(lambda: len(stub.sockets) > 0)
    expect(page.locator("#recent-table tbody tr").first).to_contain_text(clock(stub, ahead=-4))
    stub.unwritten = 0
    stub.close_candles(1)
    rows = page.locator("#recent-table tbody tr")
    for age in range(4):
        expect(rows.nth(age)).to_contain_text(clock(stub, ahead=-1 - age))


def test_reconnects_and_resumes_after_the_last_frame(stub: StubService, open_page: OpenPage) -> None:
    page = open_page(stub.url, expected=NO_SOCKET)
    stub_is_followed_since = len(stub.afters)
    following(page, stub)
    stub.close_candles(1)
    following(page, stub)
    last = stub.seq
    asked = len(stub.requests)
    stub.drop_sockets()
    eventually(lambda: not stub.sockets)
    stub.close_candles(2)
    following(page, stub)
    assert stub.afters[stub_is_followed_since:] == [None, str(last)] or stub.afters[-1] == str(last)
    assert not any(path.startswith("/candles") for path in stub.requests[asked:])


def test_a_service_that_counts_from_an_earlier_number_is_read_afresh(stub: StubService, open_page: OpenPage) -> None:
    page = open_page(stub.url, expected=NO_SOCKET)
    following(page, stub)
    stub.seq, stub.frames = 0, []
    stub.close_candles(4, tell=False)
    stub.drop_sockets()
    following(page, stub)
    stub.close_candles(1)
    following(page, stub)


def test_failures_53_a_frame_with_nan_never_stops_the_page(stub: StubService, open_page: OpenPage) -> None:
    page = open_page(stub.url)
    following(page, stub)
    stub.close_candles(1, tell=False)
    stub.send_text('{"type":"step","seq":1001,"market":"simulated:ETH/USDT","step":{"loss":NaN}}')
    following(page, stub)
    stub.close_candles(1)
    following(page, stub)


def test_numbers_that_are_null_are_shown_as_a_dash(stub: StubService, open_page: OpenPage) -> None:
    page = open_page(stub.url)
    following(page, stub)
    empty: dict[str, Any] = dict.fromkeys(stub.steps[-1]) | {
        "open_time": stub.steps[-1]["open_time"] + 1000,
        "step": 201,
    }
    stub.tell("step", step=empty)
    expect(page.locator("#fact-train-loss")).to_have_text("–")
    expect(page.locator("#norm-before")).to_have_text("–")
    stub.close_candles(1)
    following(page, stub)


def test_says_loudly_when_the_market_is_simulated(stub: StubService, open_page: OpenPage) -> None:
    page = open_page(stub.url)
    following(page, stub)
    expect(page.locator("#strip-tag")).to_be_hidden()
    stub.status["simulated"] = True
    stub.close_candles(1)
    expect(page.locator("#strip-tag")).to_be_visible()
    expect(page.locator("#strip-text")).to_contain_text("made up")


def test_shows_warm_up_progress_until_live(stub: StubService, open_page: OpenPage) -> None:
    stub.status |= {"phase": "warming_up", "done": 900, "total": 3600}
    page = open_page(stub.url)
    expect(page.locator("#strip-text")).to_contain_text("Warming up")
    expect(page.locator("#strip-detail")).to_have_text("900 of 3,600 candles")
    expect(page.locator("#strip-progress")).to_have_js_property("value", 0.25)
    stub.status |= {"done": 1800}
    expect(page.locator("#strip-progress")).to_have_js_property("value", 0.5)
    stub.status |= {"phase": "live"}
    expect(page.locator("#strip-progress")).to_be_hidden()


def test_history_already_learned_is_shown_during_warm_up(stub: StubService, open_page: OpenPage) -> None:
    stub.status |= {"phase": "warming_up", "done": 200, "total": 3600}
    stub.feed_ahead_ms = 3_400_000
    page = open_page(stub.url)
    eventually(lambda: len(stub.sockets) > 0)
    stub.close_candles(1)
    expect(page.locator("#recent-table tbody tr").nth(11)).to_contain_text(clock(stub, ahead=-12))
    expect(page.locator("#fact-skipped")).to_have_text("0 of 201")


def test_another_market_after_a_restart_is_followed(stub: StubService, open_page: OpenPage) -> None:
    page = open_page(stub.url, expected=NO_SOCKET)
    following(page, stub)
    stub.market = "binance:ETH/USDT"
    stub.drop_sockets()
    expect(page.locator("#market")).to_have_value("binance:ETH/USDT")


def test_says_when_the_feed_is_stale(stub: StubService, open_page: OpenPage) -> None:
    stub.status |= {"phase": "stale", "reason": "No candle for 12 s."}
    page = open_page(stub.url)
    expect(page.locator("#strip")).to_have_attribute("data-level", "bad")
    expect(page.locator("#strip-text")).to_have_text("No candle for 12 s.")
    expect(page.locator("#feed-state")).to_have_text("stale")


def test_notices_by_itself_that_candles_stopped_coming(stub: StubService, open_page: OpenPage) -> None:
    stub.status["age_ms"] = 60_000
    page = open_page(stub.url)
    expect(page.locator("#strip-text")).to_contain_text("No candle is coming")
    expect(page.locator("#strip")).to_have_attribute("data-level", "bad")


def test_says_when_the_service_is_gone_and_when_it_is_back(stub: StubService, open_page: OpenPage) -> None:
    page = open_page(stub.url, expected=NO_SOCKET)
    following(page, stub)
    page.context.set_offline(True)
    stub.drop_sockets()
    expect(page.locator("#strip-text")).to_contain_text("No connection to the service")
    page.context.set_offline(False)
    stub.close_candles(1)
    following(page, stub)
    expect(page.locator("#strip")).to_have_attribute("data-level", "good")


def test_shows_the_verdict_against_the_best_baseline(stub: StubService, open_page: OpenPage) -> None:
    page = open_page(stub.url)
    expect(page.locator("#verdict")).to_contain_text("not yet told apart from linear")
    expect(page.locator("#score-table tr[data-kind=model]")).to_contain_text("1.005")
    expect(page.locator("#score-table tr[data-kind=best]")).to_contain_text("linear")
    expect(page.locator("#score-note")).to_contain_text("45.1 % to 52.3 %")
    for verdict, words in (("better", "Better than linear"), ("worse", "Worse than linear")):
        stub.verdict = verdict
        page.get_by_role("button", name="300", exact=True).click()
        expect(page.locator("#verdict")).to_contain_text(words)


def test_score_window_can_be_chosen(stub: StubService, open_page: OpenPage) -> None:
    page = open_page(stub.url)
    following(page, stub)
    page.get_by_role("button", name="300", exact=True).click()
    eventually(lambda: any("/score" in path and "window=300&" in path + "&" for path in stub.requests))
    page.get_by_label("live candles only").check()
    eventually(lambda: any("/score" in path and "live=true" in path for path in stub.requests))


def test_events_are_listed_and_their_text_is_never_markup(stub: StubService, open_page: OpenPage) -> None:
    page = open_page(stub.url)
    following(page, stub)
    stub.event("gap", reason="<img src=x onerror=alert(1)>", missing=4, resumed_after=START)
    row = page.locator("#events li").first
    expect(row).to_contain_text("gap")
    expect(row).to_contain_text("<img src=x onerror=alert(1)>")
    expect(row).to_contain_text("missing: 4 · resumed after: 08:53:20")
    assert page.locator("#events img").count() == 0


def test_asks_for_a_key_and_gets_a_ticket_with_it(open_page: OpenPage) -> None:
    with running(StubService(key="sesame")) as stub:
        stub.close_candles(50, tell=False)
        page = open_page(stub.url, expected=(*NO_SOCKET, "401"))
        page.locator("#key").fill("wrong")
        page.get_by_role("button", name="Open").click()
        expect(page.get_by_text("That key was not accepted.")).to_be_visible()
        page.locator("#key").fill("sesame")
        page.get_by_role("button", name="Open").click()
        following(page, stub)
        assert stub.auths[-1] == {"type": "auth", "ticket": "once"}
        assert not any("sesame" in path for path in stub.requests)
        page.close()


def test_nothing_is_wider_than_the_screen(stub: StubService, open_page: OpenPage) -> None:
    page = open_page(stub.url)
    following(page, stub)
    stub.event("drift", reason="a rather long explanation without a place to break: " + "x" * 80)
    expect(page.locator("#events li").first).to_contain_text("drift")
    for width in (390, 820, 1280):
        page.set_viewport_size({"width": width, "height": 844})
        assert page.evaluate("() => document.documentElement.scrollWidth") == width


def test_nothing_moves_while_candles_come_in(stub: StubService, open_page: OpenPage) -> None:
    page = open_page(stub.url)
    following(page, stub)
    expect(page.locator("#verdict")).not_to_have_text("Not scored yet")
    places = "() => [...document.querySelectorAll('.card')].map((card) => JSON.stringify(card.getBoundingClientRect()))"
    before = page.evaluate(places)
    for _ in range(3):
        stub.close_candles(1)
        following(page, stub)
    assert page.evaluate(places) == before


def test_without_the_chart_library_the_page_says_so_and_goes_on(open_page: OpenPage, tmp_path: Path) -> None:
    bare = tmp_path / "static"
    bare.mkdir()
    for file in STATIC.iterdir():
        if file.is_file():
            (bare / file.name).write_bytes(file.read_bytes())
    with running(StubService(static=bare)) as stub:
        stub.close_candles(50, tell=False)
        page = open_page(stub.url, expected=("404",))
        expect(page.locator("#price-chart")).to_contain_text("not installed")
        following(page, stub)
        page.close()


def test_memory_stays_bounded(stub: StubService, open_page: OpenPage) -> None:
    page = open_page(stub.url)
    following(page, stub)
    kept = page.evaluate(
        """async () => {
            const { Records } = await import("/static/records.js");
            const records = new Records(100);
            for (let i = 0; i < 10_000; i++) records.put({ open_time: i });
            records.put({ open_time: 9_990, again: true });
            return [records.items.length, records.times.size, records.last.open_time, records.at(9_990).again];
        }"""
    )
    assert kept[0] == kept[1] <= 150
    assert kept[2:] == [9_999, True]


def test_light_and_dark_follow_the_system_and_the_button(stub: StubService, open_page: OpenPage) -> None:
    page = open_page(stub.url, color_scheme="light")
    scheme = "() => getComputedStyle(document.documentElement).getPropertyValue('--scheme').trim()"
    assert page.evaluate(scheme) == "light"
    page.get_by_role("button", name="Switch between dark and light").click()
    assert page.evaluate(scheme) == "dark"


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_memory_stays_bounded_over_hours_of_candles(stub: StubService, open_page: OpenPage) -> None:
    page = open_page(stub.url)
    following(page, stub)
    measure = page.context.new_cdp_session(page)

    def heap_after(candles: int) -> float:
        for _ in range(candles // 100):
            stub.close_candles(100)
            following(page, stub)
        measure.send("HeapProfiler.collectGarbage")
        return float(measure.send("Runtime.getHeapUsage")["usedSize"]) / 2**20

    full = heap_after(4_000)
    later = heap_after(10_000)
    assert later <= full + 3, f"the heap grew from {full:.1f} to {later:.1f} MiB"
