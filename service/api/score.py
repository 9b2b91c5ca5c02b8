"""GET /score: how good the learner is, beside the baselines."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from pydantic import Field
from starlette.responses import Response

from models.records import ScoreWindow
from service.api.answers import Flag, written_as
from service.api.deps import Market
from service.api.schemas import ScoreOut, problems
from service.ports import LiveMarket
from service.strict_json import encode

router = APIRouter(tags=["score"])
MAX_WINDOW = 14_400
WINDOW = "^(all|fading|[1-9][0-9]{0,3}|1[0-3][0-9]{3}|14[0-3][0-9]{2}|14400)$"
KEPT = 64


class ScoreCache:
    """Scores already computed for the newest candle; requests for the same score share one call to the learner."""

    def __init__(self) -> None:
        # Bounded: the oldest of KEPT answers makes room.
        self._answers: dict[tuple[str, ScoreWindow, bool], tuple[int | None, asyncio.Task[bytes]]] = {}

    async def get(self, market: LiveMarket, window: ScoreWindow, live: bool) -> bytes:
        """Return the encoded score, as of the last step."""
        step = market.status().last_step
        version = None if step is None else step.open_time
        key = (market.market, window, live)
        kept = self._answers.get(key)
        if kept is None or kept[0] != version or _failed(kept[1]):
            kept = (version, asyncio.create_task(_compute(market, window, live), name="score"))
            kept[1].add_done_callback(_failed)  # Looks at the error, which nobody may be left to do.
            self._answers.pop(key, None)
            self._answers[key] = kept
            if len(self._answers) > KEPT:
                self._answers.pop(next(iter(self._answers)))
        # Shielded: a caller who leaves must not take the answer away from the others.
        return await asyncio.shield(kept[1])

    def forget(self, market: str) -> None:
        """Drop what is known of a market whose learner became another one without a new step."""
        for key in [key for key in self._answers if key[0] == market]:
            del self._answers[key]


def _failed(task: asyncio.Task[Any]) -> bool:
    return task.done() and (task.cancelled() or task.exception() is not None)


async def _compute(market: LiveMarket, window: ScoreWindow, live: bool) -> bytes:
    return encode(await market.score(window, live))


@router.get("/score", responses={200: {"model": ScoreOut}, **problems(404, 422, 503)})
async def score(
    request: Request,
    market: Market,
    window: Annotated[
        str,
        Field(pattern=WINDOW),
        written_as(WINDOW, f"a whole number from 1 to {MAX_WINDOW}, `fading` or `all`, is needed"),
        Query(
            description=f"The last so many candles, 1 to {MAX_WINDOW}, `all`, or `fading`: the last {MAX_WINDOW}, of "
            "which each counts half as much after 3,600 later ones.",
            examples=["3600"],
        ),
    ] = "all",
    live: Annotated[Flag, Query(description="Leave out candles that came by backfill.")] = False,
) -> Response:
    """Tell the score over the last `window` candles."""
    cache: ScoreCache = request.app.state.scores
    asked: ScoreWindow = None if window == "all" else "fading" if window == "fading" else int(window)
    return Response(await cache.get(market, asked, live), media_type="application/json")
