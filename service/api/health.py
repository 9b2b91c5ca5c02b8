"""GET /health/live and /health/ready."""

from __future__ import annotations

import asyncio

from fastapi import APIRouter
from starlette.responses import Response

from service.api.answers import json_response
from service.api.deps import ApiDeps, Deps
from service.api.problem import Problem
from service.api.schemas import LiveOut, ReadyOut, problems
from service.ports import LiveMarket, StoreUnavailable

router = APIRouter(tags=["health"])
PING_SECONDS = 3.0


@router.head("/health/live", include_in_schema=False)
@router.get("/health/live", responses={200: {"model": LiveOut}, **problems()})
async def live() -> Response:
    """Answer while the process does; open without a key, so it tells nothing else."""
    return json_response({"status": "live"})


@router.head("/health/ready", include_in_schema=False)
@router.get("/health/ready", responses={200: {"model": ReadyOut}, **problems(503)})
async def ready(deps: Deps) -> Response:
    """Answer 200 when database, feeds and learners are all in order, else 503 with the reason."""
    checks = {"database": await _database(deps)}
    if not deps.markets:
        checks["markets"] = "no market is followed yet"
    for market in deps.markets.values():
        checks.update(_market_checks(market))
    wrong = [f"{name}: {state}" for name, state in checks.items() if state != "ok"]
    if wrong:
        raise Problem(503, "Not ready", "; ".join(wrong), retry_after=5, checks=checks)
    return json_response({"status": "ready", "checks": checks})


async def _database(deps: ApiDeps) -> str:
    try:
        async with asyncio.timeout(PING_SECONDS):
            await deps.store.ping()
    except (StoreUnavailable, TimeoutError):
        return "does not answer"
    return "ok"


def _market_checks(market: LiveMarket) -> dict[str, str]:
    """Check feed age, learner and warm-up of one market."""
    status = market.status()
    return {
        f"{market.market} records": "ok" if status.database_ok else f"{status.backlog} wait for the database",
        f"{market.market} learner": "ok" if status.learner_alive else "starting again",
        f"{market.market} predictions": "ok" if status.phase == "live" else status.reason or status.phase,
    }
