"""The feed against an exchange written apart from the simulated one, in real time."""

from __future__ import annotations

import asyncio

import pytest

from tests.service.feed.rival_plan import Ill, Plan, draw
from tests.service.feed.rival_run import PATIENT, Outcome, run

FOR_EVER = 10**9


async def judged(plan: Plan, seed: int, *, seconds: float) -> Outcome:
    """Run the plan; expect the exchange's truth soon after its end."""
    outcome, differences = await run(plan, seed, seconds=seconds, timing=PATIENT)
    assert differences == []
    assert outcome.fresh_after is not None
    assert outcome.fresh_after < 15
    return outcome


@pytest.mark.slow
@pytest.mark.timeout(3_000)
async def test_two_hundred_random_plans_of_another_exchange_end_in_its_truth() -> None:
    seeds = list(range(1_000, 1_200))

    async def work() -> None:
        while seeds:
            seed = seeds.pop()
            await judged(draw(seed, 60, 14), seed, seconds=60)

    await asyncio.gather(*(work() for _ in range(30)))


HABITS = [
    Ill("rest_slow", -1, FOR_EVER, {"seconds": 5}),
    Ill("no_pong", -1, FOR_EVER),
    Ill("time", -1, FOR_EVER, {"how": "missing"}),
    Ill("rest_no_running", -1, FOR_EVER),
    Ill("rest_older", -1, FOR_EVER),
    Ill("style", -1, FOR_EVER, {"how": "combined"}),
    Ill("style", -1, FOR_EVER, {"how": "exponent"}),
    Ill("subscribe", -1, FOR_EVER, {"how": "error"}),
    Ill("ws_hang", -1, FOR_EVER),
    Ill("no_finals", -1, FOR_EVER),
]


async def follow(habit: Ill) -> None:
    """Follow an exchange that is always so."""
    outcome, differences = await run(Plan((habit,)), 7, seconds=16, enough=15, timing=PATIENT)
    assert differences == [], habit
    assert len(outcome.stored) >= 15, habit
    assert outcome.gaps == [], habit
    if habit.kind == "no_pong":
        assert outcome.state is not None
        assert outcome.state.reconnects == 0


async def test_another_exchange_is_followed_through_random_plans_and_with_bad_habits() -> None:
    plans = (judged(draw(seed, 8, 7, longest=3.0), seed, seconds=8) for seed in range(8))
    await asyncio.gather(*plans, *map(follow, HABITS))
