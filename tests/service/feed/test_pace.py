"""How long the feed waits after trouble."""

from __future__ import annotations

import asyncio
import random
import time
from dataclasses import replace
from email.utils import formatdate

import pytest

from service.feed.pace import Backoff, DialBudget, Manners
from service.feed.timing import FeedTiming
from service.feed.trouble import Trouble, read_trouble

TIMING = FeedTiming()


def waits(trouble: Trouble, count: int, seed: int = 0) -> list[float]:
    backoff = Backoff(TIMING, random.Random(seed))
    return [backoff.failed(trouble) for _ in range(count)]


def test_waits_double_up_to_a_ceiling_and_are_spread() -> None:
    plain = waits(Trouble("down"), 12)
    for number, wait in enumerate(plain):
        usual = min(5.0, 0.25 * 2**number)
        assert 0.8 * usual <= wait <= 1.2 * usual
    assert plain != waits(Trouble("down"), 12, seed=1)


def test_success_starts_over() -> None:
    backoff = Backoff(TIMING, random.Random(0))
    for _ in range(8):
        backoff.failed(Trouble("down"))
    backoff.succeeded()
    assert backoff.failed(Trouble("down")) < 0.5


def test_retry_after_is_honoured() -> None:
    assert 30 <= waits(Trouble("limited", limited=True, retry_after_seconds=30), 1)[0] <= 31


def test_an_exchange_that_asks_for_no_wait_at_all_is_not_hammered_either() -> None:
    assert min(waits(Trouble("limited", limited=True, retry_after_seconds=0), 8)[5:]) >= 4


def test_a_limit_or_a_refusal_is_not_hammered() -> None:
    assert min(waits(Trouble("limited", limited=True), 5)) >= 4
    assert min(waits(Trouble("refused", refused=True), 5)) >= 8


@pytest.mark.parametrize(
    ("error", "text", "refused", "limited"),
    [
        ("binance GET http://h:1/api 451  {}", "the exchange refuses this location (HTTP 451)", True, False),
        ("451, message='Invalid response status', url='ws://h/s'", "the exchange refuses this location (HTTP 451)",
         True, False),
        ("binance GET http://h:1/api 403 Forbidden <html>", "the exchange refuses access (HTTP 403)", True, False),
        ("binance GET http://h:1/api 429 Too Many {}", "the exchange limits our requests (HTTP 429)", False, True),
        ("binance GET http://h:1/api 418 I'm a teapot {}", "the exchange limits our requests (HTTP 418)", False, True),
        ("GET http://h:451/?limit=429 500 {}", "Exception GET http://h:451/ 500 {}", False, False),
    ],
)  # fmt: skip
def test_trouble_is_read_from_what_ccxt_says_but_not_from_its_urls(
    error: str, text: str, refused: bool, limited: bool
) -> None:
    trouble = read_trouble(Exception(error))
    assert (trouble.text, trouble.refused, trouble.limited) == (text, refused, limited)


def test_the_text_of_a_trouble_holds_no_password_of_a_proxy_and_no_signed_query() -> None:
    told = "binance GET https://api.example/sapi/v1/all?timestamp=1&signature=abc by http://me:secret@proxy:1/ why? a=b"
    assert (
        read_trouble(OSError(told)).text
        == "OSError binance GET https://api.example/sapi/v1/all by http://proxy:1/ why? a=b"
    )


def test_trouble_is_one_short_line() -> None:
    text = read_trouble(ValueError("a\nb " * 200)).text
    assert "\n" not in text
    assert len(text) <= 200


def test_the_wait_an_exchange_asks_for_is_read_from_its_answer() -> None:
    error = Exception("binance GET http://h/ 429 Too Many Requests")
    assert read_trouble(error, {"retry-after": "17"}).retry_after_seconds == 17
    assert read_trouble(error, {"Retry-After": "soon"}).retry_after_seconds is None
    assert read_trouble(Exception("500"), {"Retry-After": "17"}).retry_after_seconds is None


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        # by the clock of the exchange, which may not be ours
        ({"Retry-After": "Tue, 01 Dec 2026 00:00:30 GMT", "Date": "Tue, 01 Dec 2026 00:00:00 GMT"}, 30),
        ({"Retry-After": "Tue, 01 Dec 2026 00:00:30 GMT", "Date": "Tue, 01 Dec 2026 00:01:00 GMT"}, 0),
        ({"Retry-After": "Tue, 01 Dec 2026 00:00:30 -0000", "Date": "Tue, 01 Dec 2026 00:00:00"}, 30),
        ({"Retry-After": "-5"}, 0),
        ({"Retry-After": "1e12"}, 3 * 86_400),
        ({"Retry-After": "inf"}, None),
        ({"Retry-After": "nan"}, None),
        ({"Retry-After": "99 Nov 2026 00:00:00 GMT"}, None),
        ({"Retry-After": ""}, None),
    ],
)
def test_a_wait_may_be_a_date_and_an_absurd_one_is_not_obeyed(headers: dict[str, str], seconds: float | None) -> None:
    assert read_trouble(Exception("429"), headers).retry_after_seconds == seconds


def test_a_date_without_the_exchange_s_is_read_by_our_clock() -> None:
    wait = read_trouble(Exception("429"), {"Retry-After": formatdate(time.time() + 90, usegmt=True)})
    assert 80 < (wait.retry_after_seconds or 0) <= 90


def test_what_one_market_is_told_holds_for_all_of_its_exchange() -> None:
    now = [0.0]
    manners = Manners(TIMING, lambda: now[0])
    assert manners.quiet_seconds() == 0
    manners.keep_quiet(20)
    manners.keep_quiet(5)
    now[0] = 8
    assert manners.quiet_seconds() == 12
    now[0] = 30
    assert manners.quiet_seconds() == 0


async def test_no_more_than_sixty_dials_pass_in_five_minutes_though_aiohttp_may_dial_each_twice() -> None:
    now = [0.0]
    budget = DialBudget(TIMING, lambda: now[0])
    dials = []
    while now[0] < 1_200:
        wait = budget.wait_seconds()
        if wait:
            now[0] += wait
            continue
        await budget.take()
        dials.append(now[0])
        now[0] += 1.0
    for start in dials:
        assert sum(start <= dial < start + 300 for dial in dials) <= 30
    assert len(dials) == 120


async def test_markets_that_wait_together_do_not_dial_together() -> None:
    budget = DialBudget(replace(TIMING, dials_per_window=3, dial_window_seconds=0.1))
    dials: list[float] = []

    async def dial() -> None:
        await budget.take()
        dials.append(time.monotonic())

    await asyncio.gather(*(dial() for _ in range(10)))
    # A dial is noted a little after its leave, so a fourth may seem this much too early.
    assert all(fourth - first > 0.08 for first, fourth in zip(dials, dials[3:], strict=False))
