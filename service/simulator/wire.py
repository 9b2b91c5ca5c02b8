"""How Binance's public spot protocol writes things: kline rows and frames, market data, errors."""

from __future__ import annotations

from typing import Any

from service.simulator.market import TICK, Second

Json = dict[str, Any]


def kline_row(candle: Second, interval_ms: int) -> list[Any]:
    """Write a candle as ``GET /api/v3/klines`` does."""
    quote = f"{candle.close * candle.volume:.8f}"
    return [
        candle.open_time,
        _text(candle.open),
        _text(candle.high),
        _text(candle.low),
        _text(candle.close),
        _text(candle.volume),
        candle.open_time + interval_ms - 1,
        quote,
        candle.trades,
        _text(candle.volume / 2),
        quote,
        "0",
    ]


def kline_frame(id_: str, interval: str, interval_ms: int, candle: Second, *, closed: bool, event_ms: int) -> Json:
    """Write a candle as the ``@kline_`` stream pushes it; a quiet one has no trade ids."""
    first = candle.open_time * 64 if candle.trades else -1
    return {
        "e": "kline",
        "E": event_ms,
        "s": id_,
        "k": {
            "t": candle.open_time,
            "T": candle.open_time + interval_ms - 1,
            "s": id_,
            "i": interval,
            "f": first,
            "L": first + candle.trades - 1 if candle.trades else -1,
            "o": _text(candle.open),
            "c": _text(candle.close),
            "h": _text(candle.high),
            "l": _text(candle.low),
            "v": _text(candle.volume),
            "n": candle.trades,
            "x": closed,
            "q": f"{candle.close * candle.volume:.8f}",
            "V": _text(candle.volume / 2),
            "Q": "0.00000000",
            "B": "0",
        },
    }


def partial(candle: Second) -> Second:
    """Make what a one-second candle looked like half way through."""
    if candle.trades < 2:
        return Second(candle.open_time, candle.open, candle.open, candle.open, candle.open, 0.0, 0)
    close = round(round((candle.open + candle.low) / 2 / TICK) * TICK, 8)
    low, high = min(candle.open, close), max(candle.open, close)
    return Second(candle.open_time, candle.open, high, low, close, round(candle.volume / 2, 8), candle.trades // 2)


def exchange_info(symbols: dict[str, str], now_ms: int) -> Json:
    """Write ``GET /api/v3/exchangeInfo`` for the symbols (id to ``BASE/QUOTE``)."""
    return {
        "timezone": "UTC",
        "serverTime": now_ms,
        "rateLimits": [{"rateLimitType": "REQUEST_WEIGHT", "interval": "MINUTE", "intervalNum": 1, "limit": 6000}],
        "exchangeFilters": [],
        "symbols": [_symbol(id_, symbol) for id_, symbol in symbols.items()],
    }


def error(code: int, message: str) -> Json:
    return {"code": code, "msg": message}


def _symbol(id_: str, symbol: str) -> Json:
    base, quote = symbol.split("/")
    tick = _text(TICK)
    return {
        "symbol": id_,
        "status": "TRADING",
        "baseAsset": base,
        "baseAssetPrecision": 8,
        "quoteAsset": quote,
        "quotePrecision": 8,
        "quoteAssetPrecision": 8,
        "orderTypes": ["LIMIT", "MARKET"],
        "icebergAllowed": True,
        "ocoAllowed": True,
        "isSpotTradingAllowed": True,
        "isMarginTradingAllowed": False,
        "filters": [
            {"filterType": "PRICE_FILTER", "minPrice": tick, "maxPrice": "1000000.00000000", "tickSize": tick},
            {"filterType": "LOT_SIZE", "minQty": "0.00010000", "maxQty": "9000.00000000", "stepSize": "0.00010000"},
            {"filterType": "NOTIONAL", "minNotional": "5.00000000", "applyMinToMarket": True},
        ],
        "permissions": [],
        "permissionSets": [["SPOT"]],
        "defaultSelfTradePreventionMode": "NONE",
        "allowedSelfTradePreventionModes": ["NONE"],
    }


def _text(number: float) -> str:
    return f"{number:.8f}"
