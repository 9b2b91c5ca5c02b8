"""The admin endpoints: order faults, and ask what really happened."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict

from aiohttp import web

from service.ports import ConfigurationError
from service.simulator.clock import SimulatedClock
from service.simulator.faults import KINDS, FaultBook, read_fault
from service.simulator.tape import INTERVALS_MS
from service.simulator.truth import Truth
from service.simulator.wire import kline_row

MAX_TRUTH_ROWS = 100_000


def admin_routes(
    book: FaultBook, truth: Truth, clock: SimulatedClock, since_start: Callable[[], float]
) -> Sequence[web.RouteDef]:
    """Return the routes ``/admin/faults`` (GET, POST) and ``/admin/truth`` (GET)."""

    async def faults(request: web.Request) -> web.Response:
        waiting = [asdict(fault) for fault in book.waiting(since_start())]
        done = [asdict(fault) for fault in book.history]
        return web.json_response({"now_ms": int(since_start()), "waiting": waiting, "done": done, "kinds": KINDS})

    async def order(request: web.Request) -> web.Response:
        try:
            body = await request.json()
            items = body if isinstance(body, list) else [body]
            ordered = [read_fault(item, f"fault {n}", since_start()) for n, item in enumerate(items, 1)]
        except (ConfigurationError, ValueError) as error:
            return web.json_response({"error": str(error)}, status=400)
        except RecursionError:
            return web.json_response({"error": "nested too deeply"}, status=400)
        for fault in ordered:
            book.add(fault)
        return web.json_response({"ordered": [asdict(fault) for fault in ordered]})

    async def tell(request: web.Request) -> web.Response:
        query = request.query
        id_, interval = query.get("symbol", next(iter(truth.symbols))), query.get("interval", "1s")
        if id_ not in truth.symbols or interval not in INTERVALS_MS:
            return web.json_response({"error": "unknown symbol or interval"}, status=400)
        interval_ms = INTERVALS_MS[interval]
        closed = int(clock.now_ms()) // interval_ms * interval_ms
        try:
            end = min(int(query.get("end", closed)), closed)
            start = int(query.get("start", end - 1_000 * interval_ms))
        except ValueError:
            return web.json_response({"error": "start and end are UTC milliseconds"}, status=400)
        start = max(start, end - MAX_TRUTH_ROWS * interval_ms)
        rows = [kline_row(candle, interval_ms) for candle in truth.between(id_, interval_ms, start, end)]
        return web.json_response(rows)

    return [web.get("/admin/faults", faults), web.post("/admin/faults", order), web.get("/admin/truth", tell)]
