"""The simulated market is one and the same whoever asks, and looks like a market."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np

from models.candle import Candle
from service.simulator.market import BLOCK_SECONDS, SeededMarket

START = 1_790_000_000_000
ROOT = Path(__file__).parents[3]


def test_a_second_is_the_same_in_whatever_order_and_process_it_is_asked_for() -> None:
    market = SeededMarket("ETH/USDT", 3)
    times = [START + 1_000 * n for n in (0, BLOCK_SECONDS * 5, 7, BLOCK_SECONDS - 1, BLOCK_SECONDS, 3_000_000)]
    forward, backward = [market.second(t) for t in times], [market.second(t) for t in reversed(times)]
    assert forward == backward[::-1]
    code = (
        "from service.simulator.market import SeededMarket\n"
        f"print([SeededMarket('ETH/USDT', 3).second(t) for t in {times}])"
    )
    told = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert told.strip() == str(forward)


def test_seed_and_symbol_make_another_market() -> None:
    seconds = SeededMarket("ETH/USDT", 0).seconds(START, START + 60_000)
    assert seconds != SeededMarket("ETH/USDT", 1).seconds(START, START + 60_000)
    assert seconds != SeededMarket("BTC/USDT", 0).seconds(START, START + 60_000)


def test_every_second_is_a_valid_candle_and_a_quiet_one_repeats_the_last_close() -> None:
    seconds = SeededMarket("ETH/USDT", 0).seconds(START, START + 4_000_000)
    last = seconds[0].close
    for number, s in enumerate(seconds):
        Candle("m", s.open_time, s.open, s.high, s.low, s.close, s.volume)
        assert s.open_time == START + 1_000 * number
        assert round(s.close, 2) == s.close
        if s.trades == 0:
            assert (s.open, s.high, s.low, s.close, s.volume) == (last, last, last, last, 0.0)
        last = s.close


def test_it_bounces_is_quiet_at_times_and_its_volatility_clusters() -> None:
    seconds = SeededMarket("ETH/USDT", 0).seconds(START, START + 20_000_000)
    moves = np.diff([s.close for s in seconds])
    size = np.abs(moves)
    quiet = np.mean([s.trades == 0 for s in seconds])
    assert 0.1 < quiet < 0.5
    assert -0.45 < np.corrcoef(moves[1:], moves[:-1])[0, 1] < -0.1
    assert np.corrcoef(size[10:], size[:-10])[0, 1] > 0.1


def test_long_candles_follow_the_same_price_and_an_open_one_grows_into_the_closed_one() -> None:
    market = SeededMarket("ETH/USDT", 0)
    start, hour = START // 3_600_000 * 3_600_000, 3_600_000
    closed, half = market.coarse(start, hour), market.coarse(start, hour, start + hour / 2)
    Candle("m", closed.open_time, closed.open, closed.high, closed.low, closed.close, closed.volume)
    assert half.open == closed.open
    assert half.high <= closed.high
    assert half.volume < closed.volume
    assert market.coarse(start + hour, hour).open == closed.close
    assert abs(closed.open / market.second(start).open - 1) < 0.001
