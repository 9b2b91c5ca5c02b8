"""Broadcaster: numbering, replay, loss, without ever waiting."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.broadcast import Broadcaster, Subscription
from tests.builders import MARKET, make_candle, make_step

OTHER = "binance:BTC/USDT"


def waiting(subscription: Subscription) -> list[dict[str, Any]]:
    """Take everything a subscription has to give now."""
    frames = []
    while (text := subscription._take()) is not None:
        frames.append(json.loads(text))
    return frames


def publish(broadcaster: Broadcaster, count: int, market: str = MARKET) -> None:
    for _ in range(count):
        broadcaster.publish("event", market, {"kind": "gap"})


def seqs(frames: list[dict[str, Any]]) -> list[int]:
    return [frame["seq"] for frame in frames]


def test_numbers_are_consecutive_and_start_above_the_first() -> None:
    broadcaster = Broadcaster(first_seq=5000)
    assert [broadcaster.publish("event", MARKET, {}) for _ in range(3)] == [5001, 5002, 5003]


def test_a_frame_is_encoded_once_and_shared() -> None:
    broadcaster = Broadcaster(0)
    with broadcaster.subscribe() as one, broadcaster.subscribe() as two:
        broadcaster.publish("prediction", MARKET, {"candle": make_candle()})
        assert one._take() is two._take()


def test_failures_53_no_frame_holds_what_strict_json_rejects() -> None:
    broadcaster = Broadcaster(0)
    with broadcaster.subscribe() as subscription:
        step = make_step(loss=float("nan"), grad_norm=float("inf"))
        broadcaster.publish("step", MARKET, {"step": step, "score": {"accuracy": np.float32("nan"), "n": np.int64(3)}})
        text = subscription._take()
    assert text is not None
    frame = json.loads(text, parse_constant=lambda word: pytest.fail(f"{word} in a frame"))
    assert (frame["step"]["loss"], frame["step"]["grad_norm"], frame["score"]) == (
        None,
        None,
        {"accuracy": None, "n": 3},
    )


def test_a_subscriber_gets_what_comes_after_it_and_nothing_before() -> None:
    broadcaster = Broadcaster(0)
    publish(broadcaster, 3)
    with broadcaster.subscribe() as subscription:
        publish(broadcaster, 2)
        assert seqs(waiting(subscription)) == [4, 5]


def test_a_slow_subscriber_is_told_what_it_lost_and_goes_on_with_the_newest() -> None:
    broadcaster = Broadcaster(0, history=100, queue_limit=5)
    with broadcaster.subscribe() as subscription:
        publish(broadcaster, 6)
        assert waiting(subscription)[0] == {"type": "missed", "from": 1, "to": 5, "seq": 5}
        assert subscription.missed == 1
        publish(broadcaster, 5)
        assert seqs(waiting(subscription)) == [7, 8, 9, 10, 11]


def test_frames_a_slow_subscriber_did_not_want_are_not_lost_to_it() -> None:
    broadcaster = Broadcaster(0, history=100, queue_limit=5)
    with broadcaster.subscribe(markets={MARKET}) as subscription:
        publish(broadcaster, 20, OTHER)
        publish(broadcaster, 1)
        assert seqs(waiting(subscription)) == [21]


def test_catching_up_may_take_the_whole_ring() -> None:
    broadcaster = Broadcaster(0, history=100, queue_limit=5)
    publish(broadcaster, 90)
    with broadcaster.subscribe(after=10) as subscription:
        assert seqs(waiting(subscription)) == list(range(11, 91))


@pytest.mark.parametrize("after", [0, 3, 999_999])
def test_after_a_number_of_an_earlier_process_or_of_none_the_loss_is_told(after: int) -> None:
    broadcaster = Broadcaster(1000, history=100, queue_limit=50)
    publish(broadcaster, 2)
    with broadcaster.subscribe(after=after) as subscription:
        missed, *frames = waiting(subscription)
    assert missed["type"] == "missed"
    assert missed["to"] == 1000
    assert seqs(frames) == [1001, 1002]


@given(
    before=st.integers(0, 60),
    after=st.integers(0, 70),
    later=st.lists(st.booleans(), max_size=60),
    limit=st.integers(1, 20),
)
def test_nothing_is_lost_untold_or_doubled(before: int, after: int, later: list[bool], limit: int) -> None:
    broadcaster = Broadcaster(0, history=20, queue_limit=limit)
    publish(broadcaster, before)
    after = min(after, before)
    got: list[dict[str, Any]] = []
    with broadcaster.subscribe(after=after) as subscription:
        for take in later:
            publish(broadcaster, 1)
            text = subscription._take() if take else None
            if text is not None:
                got.append(json.loads(text))
        got += waiting(subscription)
    covered = [
        seq
        for frame in got
        for seq in (range(frame["from"], frame["to"] + 1) if frame["type"] == "missed" else [frame["seq"]])
    ]
    assert covered == list(range(after + 1, before + len(later) + 1))


async def test_a_waiting_subscriber_wakes_for_a_frame() -> None:
    broadcaster = Broadcaster(0)
    with broadcaster.subscribe() as subscription:
        waiter = asyncio.create_task(anext(subscription))
        await asyncio.sleep(0)
        publish(broadcaster, 1)
        assert json.loads(await waiter)["seq"] == 1


async def test_close_ends_every_subscription_after_what_is_still_to_send() -> None:
    broadcaster = Broadcaster(0)

    async def follow() -> list[str]:
        with broadcaster.subscribe() as subscription:
            return [text async for text in subscription]

    follower = asyncio.create_task(follow())
    await asyncio.sleep(0)
    publish(broadcaster, 2)
    await broadcaster.close()
    assert len(await follower) == 2
    assert broadcaster.subscribers == 0


async def test_close_does_not_wait_for_an_owner_that_is_stuck() -> None:
    broadcaster = Broadcaster(0)
    with broadcaster.subscribe():
        await broadcaster.close(timeout_seconds=0.01)
    assert broadcaster.closed
