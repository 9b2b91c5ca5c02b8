"""What kraken, coinbase, bybit, gate, kucoin, okx and upbit say, in their words."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from tests.service.feed.venue import SECOND, Deal, Json, Venue


class Kraken(Venue):
    exchange, symbol, snapshot = "kraken", "ETH/USD", 50

    def config(self) -> Json:
        return {"urls": {"api": {"public": f"http://{self.base}", "ws": {"publicV2": f"ws://{self.base}/ws/v2"}}}}

    def answer(self, path: str, query: dict[str, str]) -> Json:
        result: Json = {}
        match path.rsplit("/", 1)[-1]:
            case "Assets":
                result = {"XETH": {"altname": "ETH", "decimals": 10}, "ZUSD": {"altname": "USD", "decimals": 4}}
            case "AssetPairs":
                pair = {"altname": "ETHUSD", "wsname": "ETH/USD", "base": "XETH", "quote": "ZUSD", "tick_size": "0.01"}
                result = {"XETHZUSD": {**pair, "pair_decimals": 2, "lot_decimals": 8, "status": "online"}}
            case "Time":
                result = {"unixtime": int(self.now_ms() / 1_000)}
            case "Trades":
                since = int(query.get("since", "0")) * 1_000_000
                deals = [deal for deal in self.happened() if deal.us > since]
                deals = deals[: int(query.get("count", 1_000))] if since else deals[-1_000:]
                rows = [[d.price, d.amount, d.us / 1e6, "b", "l", "", d.id] for d in deals]
                result = {"XETHZUSD": rows, "last": str(deals[-1].us * 1_000 if deals else since * 1_000)}
        return {"error": [], "result": result}

    def hear(self, message: Json) -> tuple[list[Json], bool]:
        if message["method"] == "ping":
            return [{"method": "pong", "req_id": message.get("req_id")}], False
        result = {"channel": "trade", "symbol": self.symbol, "snapshot": True}
        return [{"method": "subscribe", "result": result, "success": True, "req_id": message["req_id"]}], True

    def frames(self, deals: Sequence[Deal], kind: str) -> list[Json]:
        data = [
            {"symbol": self.symbol, "side": "sell", "price": float(d.price), "qty": float(d.amount),
             "ord_type": "market", "trade_id": d.id, "timestamp": d.iso}
            for d in deals
        ]  # fmt: skip
        return [{"channel": "trade", "type": kind, "data": data}, {"channel": "heartbeat"}]


class Coinbase(Venue):
    exchange, symbol, snapshot = "coinbase", "ETH/USD", 20

    def config(self) -> Json:
        return {"urls": {"api": {"rest": f"http://{self.base}", "ws": f"ws://{self.base}/ws"}}}

    def answer(self, path: str, query: dict[str, str]) -> Json:
        if path == "/v2/time":
            return {"data": {"epoch": int(self.now_ms() / 1_000), "iso": ""}}
        if path.endswith("/products"):
            product = {"product_id": "ETH-USD", "base_currency_id": "ETH", "quote_currency_id": "USD", "status": ""}
            spot = {**product, "product_type": "SPOT", "price_increment": "0.01", "base_increment": "0.0001"}
            return {"products": [spot] if query.get("product_type") is None else []}
        if path.endswith("/ticker"):
            start, end = int(query.get("start", "0")), int(query.get("end", "99999999999"))
            deals = [deal for deal in self.happened() if start * 1_000_000 <= deal.us < end * 1_000_000]
            return {"trades": [self._trade(deal) for deal in deals[: -int(query["limit"]) - 1 : -1]]}
        return {"data": []}

    def hear(self, message: Json) -> tuple[list[Json], bool]:
        return [{"channel": "subscriptions", "sequence_num": 0, "events": [{"subscriptions": {}}]}], True

    def frames(self, deals: Sequence[Deal], kind: str) -> list[Json]:
        event = {"type": kind, "trades": [self._trade(deal) for deal in reversed(deals)]}
        return [{"channel": "market_trades", "client_id": "", "sequence_num": 1, "events": [event]}]

    def _trade(self, deal: Deal) -> Json:
        return {"trade_id": str(deal.id), "product_id": "ETH-USD", "price": deal.price, "size": deal.amount,
                "side": "BUY", "time": deal.iso}  # fmt: skip


class Bybit(Venue):
    exchange, forgetful = "bybit", True

    def config(self) -> Json:
        urls = dict.fromkeys(("spot", "futures", "v2", "public", "private"), f"http://{self.base}")
        sockets = {"public": {"spot": f"ws://{self.base}/ws/v5/public/spot"}}
        return {"urls": {"api": {**urls, "ws": sockets}}, "options": {"fetchMarkets": {"types": ["spot"]}}}

    def answer(self, path: str, query: dict[str, str]) -> Json:
        result: Json = {"list": []}
        if path.endswith("/time"):
            result = {"timeSecond": str(int(self.now_ms() / 1_000)), "timeNano": str(int(self.now_ms() * 1e6))}
        elif path.endswith("/instruments-info"):
            market = {"symbol": "ETHUSDT", "baseCoin": "ETH", "quoteCoin": "USDT", "status": "Trading"}
            result["list"] = [{**market, "lotSizeFilter": {}, "priceFilter": {"tickSize": "0.01"}}]
        elif path.endswith("/recent-trade"):
            if int(query.get("limit", 60)) > 60:
                return {"retCode": 10001, "retMsg": "params error: limit"}
            deals = self.happened()[: -int(query.get("limit", 60)) - 1 : -1]
            result["list"] = [
                {"execId": str(d.id), "symbol": "ETHUSDT", "price": d.price, "size": d.amount, "side": "Buy",
                 "time": str(d.us // 1_000), "isBlockTrade": False}
                for d in deals
            ]  # fmt: skip
        return {"retCode": 0, "retMsg": "OK", "result": result, "time": int(self.now_ms())}

    def hear(self, message: Json) -> tuple[list[Json], bool]:
        if message["op"] == "ping":
            return [{"success": True, "ret_msg": "pong", "op": "ping", "req_id": message.get("req_id")}], False
        return [{"success": True, "ret_msg": "subscribe", "op": "subscribe", "req_id": message["req_id"]}], True

    def frames(self, deals: Sequence[Deal], kind: str) -> list[Json]:
        data = [
            {"i": str(d.id), "T": d.us // 1_000, "p": d.price, "v": d.amount, "S": "Buy", "s": "ETHUSDT", "BT": False}
            for d in deals
        ]
        return [{"topic": "publicTrade.ETHUSDT", "type": "snapshot", "ts": int(self.now_ms()), "data": data}]


class Gate(Venue):
    exchange = "gate"

    def config(self) -> Json:
        urls = dict.fromkeys(("wallet", "spot", "margin", "futures", "delivery", "options"), f"http://{self.base}")
        sockets = {"spot": f"ws://{self.base}/ws/v4/"}
        return {"urls": {"api": {"public": urls, **sockets}}, "options": {"fetchMarkets": {"types": ["spot"]}}}

    def answer(self, path: str, query: dict[str, str]) -> Json:
        if path == "/spot/time":
            return {"server_time": int(self.now_ms())}
        if path == "/spot/currency_pairs":
            pair = {"id": "ETH_USDT", "base": "ETH", "quote": "USDT", "trade_status": "tradable"}
            return [{**pair, "precision": 2, "amount_precision": 4}]
        if path == "/spot/trades":
            end = int(query.get("to", "99999999999")) * 1_000_000
            deals = [deal for deal in self.happened() if deal.us < end]
            return [self._trade(deal) for deal in deals[: -int(query["limit"]) - 1 : -1]]
        return []

    def hear(self, message: Json) -> tuple[list[Json], bool]:
        if message["channel"] == "spot.ping":
            return [{"time": 1, "channel": "spot.pong", "event": "", "result": None}], False
        told = {"time": 1, "id": message["id"], "channel": "spot.trades", "event": "subscribe"}
        return [{**told, "result": {"status": "success"}}], True

    def frames(self, deals: Sequence[Deal], kind: str) -> list[Json]:
        return [{"time": 1, "channel": "spot.trades", "event": "update", "result": self._trade(d)} for d in deals]

    def _trade(self, deal: Deal) -> Json:
        return {"id": deal.id, "create_time": deal.us // 1_000_000, "create_time_ms": f"{deal.us / 1_000:.3f}",
                "side": "sell", "currency_pair": "ETH_USDT", "amount": deal.amount, "price": deal.price}  # fmt: skip


class Kucoin(Venue):
    exchange, forgetful = "kucoin", True
    negotiated = 0

    def config(self) -> Json:
        urls = dict.fromkeys(("public", "private", "futuresPublic"), f"http://{self.base}")
        return {"urls": {"api": urls}, "options": {"fetchMarkets": {"types": ["spot"]}}}

    def answer(self, path: str, query: dict[str, str]) -> Json:
        data: Json = []
        match path.rsplit("/", 1)[-1]:
            case "timestamp":
                data = int(self.now_ms())
            case "symbols":
                market = {"symbol": "ETH-USDT", "name": "ETH-USDT", "baseCurrency": "ETH", "quoteCurrency": "USDT"}
                data = [{**market, "priceIncrement": "0.01", "baseIncrement": "0.0001", "enableTrading": True}]
            case "bullet-public":
                self.negotiated += 1
                server = {"endpoint": f"ws://{self.base}/ws/{self.negotiated}", "pingInterval": 18_000}
                data = {"token": f"t{self.negotiated}", "instanceServers": [server]}
            case "histories":
                data = [
                    {"sequence": str(d.id), "tradeId": str(d.id), "price": d.price, "size": d.amount, "side": "buy",
                     "time": d.us * 1_000}
                    for d in self.happened()[-100:]
                ]  # fmt: skip
        return {"code": "200000", "data": data}

    def hear(self, message: Json) -> tuple[list[Json], bool]:
        return [{"id": message["id"], "type": "pong" if message["type"] == "ping" else "ack"}], (
            message["type"] == "subscribe"
        )

    def frames(self, deals: Sequence[Deal], kind: str) -> list[Json]:
        return [
            {"type": "message", "topic": "/market/match:ETH-USDT", "subject": "trade.l3match",
             "data": {"sequence": str(d.id), "tradeId": str(d.id), "symbol": "ETH-USDT", "side": "buy",
                      "size": d.amount, "price": d.price, "time": str(d.us * 1_000), "type": "match"}}
            for d in deals
        ]  # fmt: skip


class Candles(Venue):
    """Has candles of a second itself, of those only in which somebody traded."""

    def rows(self, first: int, last: int) -> list[tuple[int, float, float, float, float, float]]:
        """Return the rows from one open time to another, as they stand now, newest first."""
        there: dict[int, list[Deal]] = {}
        for deal in self.happened():
            there.setdefault(deal.us // 1_000_000 * SECOND, []).append(deal)
        found = []
        for open_time in sorted(there, reverse=True):
            if first <= open_time <= last:
                prices = [float(deal.price) for deal in there[open_time]]
                volume = round(sum(float(deal.amount) for deal in there[open_time]), 4)
                found.append((open_time, prices[0], max(prices), min(prices), prices[-1], volume))
        return found

    def touched(self, deals: Sequence[Deal]) -> list[tuple[int, float, float, float, float, float]]:
        times = sorted({deal.us // 1_000_000 * SECOND for deal in deals})
        return [row for time_ in times for row in self.rows(time_, time_)]


class Okx(Candles):
    exchange = "okx"

    def config(self) -> Json:
        urls = {"rest": f"http://{self.base}", "ws": f"ws://{self.base}/ws/v5"}
        return {"urls": {"api": urls}, "options": {"fetchMarkets": {"types": ["spot"]}}}

    def answer(self, path: str, query: dict[str, str]) -> Json:
        data: Json = []
        if path.endswith("/time"):
            data = [{"ts": str(int(self.now_ms()))}]
        elif path.endswith("/instruments"):
            market = {"instId": "ETH-USDT", "instType": "SPOT", "baseCcy": "ETH", "quoteCcy": "USDT", "state": "live"}
            data = [{**market, "tickSz": "0.01", "lotSz": "0.0001"}]
        elif path.endswith("candles"):
            first, last = int(query.get("before", 0)) + 1, int(query.get("after", 2**53)) - 1
            rows = self.rows(first, last)[: min(int(query["limit"]), 300)]
            data = [self._texts(row) for row in rows]
        return {"code": "0", "msg": "", "data": data}

    def hear(self, message: Json) -> tuple[list[Json], bool]:
        return [{"event": "subscribe", "arg": arg, "connId": "1"} for arg in message["args"]], True

    def frames(self, deals: Sequence[Deal], kind: str) -> list[Json]:
        arg = {"channel": "candle1s", "instId": "ETH-USDT"}
        return [{"arg": arg, "data": [self._texts(row)]} for row in self.touched(deals)]

    def _texts(self, row: Sequence[float]) -> list[str]:
        return [*map(str, row), "0", "0", "0"]


class Upbit(Candles):
    exchange, symbol = "upbit", "ETH/KRW"

    def config(self) -> Json:
        return {"urls": {"api": {"public": f"http://{self.base}", "ws": f"ws://{self.base}/ws/v1"}}}

    def answer(self, path: str, query: dict[str, str]) -> Json:
        if path.endswith("/market/all"):
            return [{"market": "KRW-ETH", "korean_name": "", "english_name": "Ethereum"}]
        if path.endswith("/candles/seconds"):
            if int(query["count"]) > 200:
                return {"error": {"name": "too_many", "message": "count"}}
            to = query.get("to")
            last = int(datetime.fromisoformat(to).timestamp() * 1_000) - 1 if to else 2**53
            return [self._words(row) for row in self.rows(0, last)[: int(query["count"])]]
        return []

    def hear(self, message: Json) -> tuple[list[Json], bool]:
        return [], True

    def frames(self, deals: Sequence[Deal], kind: str) -> list[Json]:
        return [{"type": "candle.1s", "code": "KRW-ETH", **self._words(row)} for row in self.touched(deals)]

    def _words(self, row: Sequence[float]) -> Json:
        opened = datetime.fromtimestamp(row[0] / 1_000, UTC).strftime("%Y-%m-%dT%H:%M:%S")
        return {"market": "KRW-ETH", "candle_date_time_utc": opened, "opening_price": row[1], "high_price": row[2],
                "low_price": row[3], "trade_price": row[4], "candle_acc_trade_volume": row[5]}  # fmt: skip


VENUES: tuple[type[Venue], ...] = (Kraken, Coinbase, Bybit, Gate, Kucoin, Okx, Upbit)
