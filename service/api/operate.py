"""GET /markets, GET /model and the POST calls that operate the learner."""

from __future__ import annotations

from collections.abc import Awaitable
from dataclasses import asdict
from typing import Any, TypeVar

from fastapi import APIRouter, Request
from starlette.responses import Response

from service.api.answers import json_response
from service.api.deps import Deps, Market
from service.api.problem import Problem
from service.api.schemas import CheckpointOut, MarketsOut, ModelOut, PausedOut, problems
from service.api.score import ScoreCache
from service.ports import LearnerUnavailable, LiveMarket, LivewickError, StoreUnavailable

router = APIRouter(tags=["operate"])
Result = TypeVar("Result")


@router.get("/markets", responses={200: {"model": MarketsOut}, **problems(422)})
async def followed_markets(deps: Deps) -> Response:
    """Tell what is followed, the state and age of each feed, and how far the warm-up is."""
    markets = [describe_market(market) for market in deps.markets.values()]
    return json_response({"markets": markets, "version": deps.options.version, "seq": deps.broadcaster.last_seq})


def describe_market(market: LiveMarket) -> dict[str, Any]:
    """Return the JSON-ready state of one market."""
    status = market.status()
    return {
        "market": market.market,
        "interval_ms": market.interval_ms,
        "phase": status.phase,
        "reason": status.reason,
        "simulated": status.feed is not None and status.feed.simulated,
        "feed": None if status.feed is None else asdict(status.feed),
        "warmup": {"done": status.warmup_done, "total": status.warmup_total},
        "learner_alive": status.learner_alive,
        "learner_restarts": status.learner_restarts,
        "paused": status.paused,
        "database_ok": status.database_ok,
        "backlog": status.backlog,
        "queue_depth": status.queue_depth,
        "step": None if status.last_step is None else status.last_step.step,
        "checkpoint_open_time": status.checkpoint_open_time,
        "checkpoint_age_ms": status.checkpoint_age_ms,
    }


@router.get("/model", responses={200: {"model": ModelOut}, **problems(404, 422, 503)})
async def model(market: Market) -> Response:
    """Tell the network's size, device, precision and configuration, and how far it has learned."""
    described = await market.describe()
    status = market.status()
    return json_response(
        {
            **described,
            "market": market.market,
            "step": described.get("step", None if status.last_step is None else status.last_step.step),
            "paused": status.paused,
            "restarts": status.learner_restarts,
            "checkpoint_open_time": status.checkpoint_open_time,
            "checkpoint_age_ms": status.checkpoint_age_ms,
        }
    )


@router.post("/model/pause", responses={200: {"model": PausedOut}, **problems(404, 409, 422, 503)})
async def pause(market: Market) -> Response:
    """Stop training; predictions go on."""
    await _operate(market.pause())
    return json_response({"market": market.market, "paused": True})


@router.post("/model/resume", responses={200: {"model": PausedOut}, **problems(404, 409, 422, 503)})
async def resume(market: Market) -> Response:
    """Train again."""
    await _operate(market.resume())
    return json_response({"market": market.market, "paused": False})


@router.post("/model/checkpoint", responses={200: {"model": CheckpointOut}, **problems(404, 409, 422, 503)})
async def checkpoint(market: Market) -> Response:
    """Save a checkpoint now."""
    saved = await _operate(market.checkpoint())
    return json_response({"market": market.market, **saved})


@router.post("/model/rollback", responses={200: {"model": CheckpointOut}, **problems(404, 409, 422, 503)})
async def rollback(request: Request, market: Market) -> Response:
    """Go back to the checkpoint before the newest."""
    scores: ScoreCache = request.app.state.scores
    try:
        loaded = await _operate(market.rollback())
    finally:
        scores.forget(market.market)
    return json_response({"market": market.market, **loaded})


async def _operate(call: Awaitable[Result]) -> Result:
    """Await an operation; one that cannot be done in the present state answers 409 with the reason."""
    try:
        return await call
    except (LearnerUnavailable, StoreUnavailable):
        raise
    except LivewickError as error:
        raise Problem(409, "Not possible now", str(error)) from error
