"""Candles made of trades."""

from __future__ import annotations

from typing import Any

import pytest

from service.feed.trades import Trade, TradeCandles, candle_rows, read_trades

START = 1_790_000_000_000


def trade(ms: int, price: float, amount: float = 1.0, id_: str | None = None) -> Trade:
    return Trade(id_ or f"{ms}-{price}", START + ms, price, amount)


def raw(**changes: Any) -> dict[str, Any]:
    return {"id": "7", "timestamp": START, "price": 10.0, "amount": 2.0, "symbol": "ETH/USD", **changes}


def test_a_candle_is_made_of_its_trades_and_a_quiet_interval_is_flat() -> None:
    trades = [trade(0, 10), trade(1, 12, 0.1), trade(500, 9, 0.2), trade(999, 11), trade(2_000, 13)]
    assert candle_rows(trades, 1_000, START, START + 3_000, None) == [
        [START, 10, 12, 9, 11, 2.3],
        [START + 1_000, 11, 11, 11, 11, 0.0],
        [START + 2_000, 13, 13, 13, 13, 1.0],
    ]


def test_before_the_first_known_price_there_is_no_candle() -> None:
    assert [row[0] for row in candle_rows([trade(2_000, 9)], 1_000, START, START + 3_000, None)] == [START + 2_000]
    assert candle_rows([], 1_000, START, START + 1_000, 5.0) == [[START, 5.0, 5.0, 5.0, 5.0, 0.0]]


def test_the_first_interval_seen_is_left_out_and_each_one_closes_with_a_later_trade() -> None:
    candles = TradeCandles(1_000)
    assert candles.add([trade(400, 10)]) == []
    assert candles.add([trade(1_100, 11)]) == []
    assert candles.add([trade(1_900, 12)]) == []
    assert candles.add([trade(4_000, 13)]) == [
        [START + 1_000, 11, 12, 11, 12, 2.0],
        [START + 2_000, 12, 12, 12, 12, 0.0],
        [START + 3_000, 12, 12, 12, 12, 0.0],
    ]


def test_a_trade_told_twice_counts_once() -> None:
    candles = TradeCandles(1_000)
    for _ in range(2):
        candles.add([trade(400, 10), trade(1_100, 11)])
    assert candles.add([trade(2_000, 12)]) == [[START + 1_000, 11, 11, 11, 11, 1.0]]


def test_trades_out_of_order_within_an_interval_are_put_in_order() -> None:
    candles = TradeCandles(1_000)
    candles.add([trade(0, 10)])
    candles.add([trade(1_800, 12)])
    candles.add([trade(1_200, 11)])
    assert candles.add([trade(2_000, 9)]) == [[START + 1_000, 11, 12, 11, 12, 2.0]]


def test_after_a_new_connection_the_first_interval_is_left_out_again() -> None:
    candles = TradeCandles(1_000)
    candles.add([trade(0, 10), trade(1_000, 10)])
    candles.disconnected()
    assert candles.add([trade(1_500, 11), trade(2_100, 12), trade(3_000, 13)]) == [[START + 2_000, 12, 12, 12, 12, 1.0]]


@pytest.mark.parametrize(
    "changes",
    [
        {"price": None},
        {"price": float("nan")},
        {"price": 0.0},
        {"price": "10"},
        {"amount": -1.0},
        {"amount": None},
        {"timestamp": None},
        {"timestamp": 1.5},
    ],
)
def test_senseless_trades_are_refused_and_counted(changes: dict[str, Any]) -> None:
    trades, refused = read_trades([raw(**changes), raw()])
    assert (trades, refused) == ([Trade("7", START, 10.0, 2.0)], 1)


@pytest.mark.parametrize("answer", [None, "<html>", {}, 7])
def test_an_answer_that_is_no_list_holds_no_trades(answer: object) -> None:
    assert read_trades(answer) == ([], 1)


def test_trades_without_an_id_are_told_apart_by_what_they_are() -> None:
    trades, refused = read_trades([raw(id=None), raw(id=None), raw(id=None, price=11.0)])
    assert (len(trades), refused) == (2, 0)
