"""A question without an answer is asked again beside."""

from __future__ import annotations

import asyncio

import pytest

from service.feed.patience import NoAnswer, first_answer
from tests.support.eventually import eventually


class Exchange:
    """Answers the n-th question when ``events[n]`` is set; counts questions and those given up."""

    def __init__(self, count: int) -> None:
        self.events = [asyncio.Event() for _ in range(count)]
        self.asked = self.left = self.late = 0

    async def ask(self) -> int:
        number = self.asked
        self.asked += 1
        try:
            await self.events[number].wait()
        except asyncio.CancelledError:
            self.left += 1
            raise
        return number

    def note(self) -> None:
        self.late += 1


async def test_an_answer_in_time_is_all_that_is_asked_for() -> None:
    exchange = Exchange(3)
    exchange.events[0].set()
    assert await first_answer(exchange.ask, 5, 3, exchange.note) == 0
    assert (exchange.asked, exchange.late) == (1, 0)


async def test_a_dead_connection_costs_one_wait() -> None:
    exchange = Exchange(3)
    exchange.events[1].set()
    assert await first_answer(exchange.ask, 0.01, 3, exchange.note) == 1
    assert (exchange.asked, exchange.late, exchange.left) == (2, 1, 1)


async def test_a_slow_answer_to_the_first_question_is_still_heard() -> None:
    exchange = Exchange(3)

    def note() -> None:
        exchange.note()
        if exchange.late == 2:
            exchange.events[0].set()

    assert await first_answer(exchange.ask, 0.01, 3, note) == 0
    assert (exchange.asked, exchange.left) == (3, 2)


async def test_after_so_many_questions_without_an_answer_it_is_given_up_and_none_is_left_running() -> None:
    exchange = Exchange(3)
    with pytest.raises(NoAnswer, match=r"nothing came within 0\.03 s"):
        await first_answer(exchange.ask, 0.01, 3, exchange.note)
    assert (exchange.asked, exchange.late, exchange.left) == (3, 3, 3)


async def test_however_long_it_waits_only_three_questions_are_out() -> None:
    exchange = Exchange(3)
    with pytest.raises(NoAnswer):
        await first_answer(exchange.ask, 0.001, 9, exchange.note)
    assert (exchange.asked, exchange.late) == (3, 9)


async def test_an_answer_counts_more_than_an_error_of_the_same_moment() -> None:
    answers: list[asyncio.Future[int]] = []

    async def ask() -> int:
        answers.append(asyncio.get_running_loop().create_future())
        return await answers[-1]

    def note() -> None:
        if len(answers) == 3:
            answers[0].set_exception(ZeroDivisionError())
            answers[1].set_result(7)
            answers[2].set_exception(ZeroDivisionError())

    assert await first_answer(ask, 0.01, 4, note) == 7


async def test_an_error_is_an_answer() -> None:
    async def fail() -> int:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await first_answer(fail, 5, 3, lambda: None)


async def test_being_cancelled_leaves_no_question_running() -> None:
    exchange = Exchange(3)
    asking = asyncio.create_task(first_answer(exchange.ask, 0.01, 3, exchange.note))
    await eventually(lambda: exchange.asked == 2)
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    assert exchange.left == exchange.asked
