"""LearnerWorker: one real child process, and its state exact across the child's deaths."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import psutil
import pytest
import torch

from models.config import LearnerConfig
from models.learner import Learner
from service.learner_child import start_child
from service.learner_process import LearnerServer, Reply, Request, at_once, serve
from service.ports import CheckpointRefused, LearnerUnavailable
from service.worker import LearnerKeepsDying, LearnerWorker, WorkerLimits
from tests.builders import MARKET, make_candle
from tests.support.eventually import eventually

CONFIG = LearnerConfig(market=MARKET, tick=0.01)
LIMITS = WorkerLimits(hang_seconds=60, start_seconds=100)


@asynccontextmanager
async def working(limits: WorkerLimits = LIMITS) -> AsyncIterator[tuple[LearnerWorker, asyncio.Task[None]]]:
    worker = LearnerWorker(CONFIG, limits=limits)
    task = asyncio.create_task(worker.run())
    try:
        async with asyncio.timeout(110):
            yield worker, task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def walk(worker: LearnerWorker, first: int, count: int) -> None:
    for index in range(first, first + count):
        await worker.predict(make_candle(index))
        await worker.learn(make_candle(index))


def in_this_process(count: int) -> Learner:
    torch.set_num_threads(1)
    learner = Learner(CONFIG)
    for index in range(count):
        learner.predict(make_candle(index), 0)
        learner.learn(make_candle(index))
    return learner


def learners() -> list[psutil.Process]:
    """Return the learners' processes that this one has."""
    children = psutil.Process().children(recursive=True)
    return [child for child in children if "learner_process" in " ".join(child.cmdline())]


async def killed(worker: LearnerWorker, number: signal.Signals = signal.SIGKILL) -> None:
    """Kill the child and return when another one is ready."""
    before = worker.restarts
    assert worker.pid is not None
    os.kill(worker.pid, number)
    await eventually(lambda: worker.restarts > before and worker.alive, 90)


async def test_a_killed_child_comes_back_to_the_last_bit() -> None:
    async with working() as (worker, _):
        await worker.load(None)
        await walk(worker, 0, 4)
        _, _, data = await worker.checkpoint()
        await walk(worker, 4, 3)
        await worker.predict(make_candle(7))
        await killed(worker)
        await worker.learn(make_candle(7))
        await walk(worker, 8, 2)
        assert await worker.weights_hash() == in_this_process(10).weights_hash()
        await worker.load(data)
        await walk(worker, 4, 6)
        assert await worker.weights_hash() == in_this_process(10).weights_hash()


async def test_what_a_restart_repeats_is_bounded_and_changes_nothing() -> None:
    async with working(replace(LIMITS, replay_seconds=0.0, replay_checkpoints=0.0)) as (worker, _):
        await worker.load(None)
        await walk(worker, 0, 4)
        await worker.predict(make_candle(4))
        assert len(worker._journal) == 1, "a checkpoint was taken after each candle"
        await killed(worker)
        await worker.learn(make_candle(4))
        assert await worker.weights_hash() == in_this_process(5).weights_hash()


async def test_a_child_started_beforehand_is_the_first_and_what_was_never_used_is_not_left_behind() -> None:
    first, unused = start_child(), start_child()
    worker = LearnerWorker(CONFIG, LIMITS, first)
    task = asyncio.create_task(worker.run())
    await worker.load(None)
    assert worker.pid == first.process.pid
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    unused.discard()
    assert not unused.alive


async def test_a_child_that_died_before_it_was_used_costs_a_restart() -> None:
    first = start_child()
    first.kill()
    worker = LearnerWorker(CONFIG, LIMITS, first)
    task = asyncio.create_task(worker.run())
    await worker.load(None)
    await walk(worker, 0, 2)
    assert worker.restarts == 1
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_a_hanging_child_is_killed_and_the_same_call_then_works() -> None:
    async with working(WorkerLimits(hang_seconds=3, start_seconds=100)) as (worker, _):
        await worker.load(None)
        await walk(worker, 0, 2)
        assert worker.pid is not None
        os.kill(worker.pid, signal.SIGSTOP)
        late = asyncio.create_task(worker.predict(make_candle(2)))
        await eventually(lambda: len(learners()) == 2)
        with pytest.raises(LearnerUnavailable):
            await late
        await worker.ready()
        await walk(worker, 2, 1)
        assert worker.restarts == 1
        assert [child.pid for child in learners()] == [worker.pid]


async def test_a_child_that_was_only_late_goes_on() -> None:
    async with working(WorkerLimits(hang_seconds=9, start_seconds=100)) as (worker, _):
        await worker.load(None)
        assert worker.pid is not None
        os.kill(worker.pid, signal.SIGSTOP)
        late = asyncio.create_task(worker.predict(make_candle(0)))
        await eventually(lambda: len(learners()) == 2)
        os.kill(worker.pid, signal.SIGCONT)
        await late
        assert worker.restarts == 0
        assert [child.pid for child in learners()] == [worker.pid]


def test_failures_19_the_child_takes_one_thread_however_many_the_host_offers() -> None:
    """More would be throttled under a CPU quota, and add in another order: steps would not be bit-equal."""
    code = f"""
import torch
from models.config import LearnerConfig
from service.learner_process import LearnerServer
LearnerServer().do_start({CONFIG!r}, None)
print(torch.get_num_threads())
"""
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert said.stdout.split() == ["1"]


async def test_previews_are_answered_while_learning_and_change_nothing() -> None:
    async with working() as (worker, _):
        await worker.load(None)
        await walk(worker, 0, 3)
        window = [make_candle(index) for index in range(3)]
        previews = [asyncio.create_task(worker.preview(window)) for _ in range(20)]
        await walk(worker, 3, 3)
        answers = await asyncio.gather(*previews)
        learner = in_this_process(3)
        by_weights = {}
        for index in range(3, 7):
            by_weights[learner.step] = learner.preview(window, 0).p_up
            learner.predict(make_candle(index), 0)
            learner.learn(make_candle(index))
        for answer in answers:
            # Batched with others the same sum is rounded differently.
            assert answer.p_up == pytest.approx(by_weights[answer.step], rel=1e-9)
        assert await worker.weights_hash() == in_this_process(6).weights_hash()


@pytest.mark.parametrize(
    ("sizes", "count"),
    [([2], 1), ([2] * 20, 8), ([1500, 2], 1), ([700, 700, 700], 2), ([2000], 1), ([187] * 9, 8), ([188] * 9, 7)],
)
def test_a_batch_of_previews_costs_no_more_than_one_long_preview(sizes: list[int], count: int) -> None:
    assert at_once(sizes) == count


def test_a_live_request_waits_for_one_batch_of_previews_at_most() -> None:
    window = tuple(make_candle(index) for index in range(3))
    waiting = [Request(number, "preview", (window,)) for number in range(20)]
    connection = Scripted([Request(100, "start", (CONFIG, None)), *waiting], live=Request(101, "describe", ()))
    serve(connection, LearnerServer())  # type: ignore[arg-type]
    assert connection.sent == [100, *range(8), 101, *range(8, 20)]


class Scripted:
    """The child's end of the socket pair: requests that are all there, and a ``live`` one that comes with an answer."""

    def __init__(self, requests: list[Request], live: Request) -> None:
        self._requests = requests
        self._live = [live]
        self.sent: list[int] = []

    def waiting(self) -> bool:
        return bool(self._requests)

    def receive(self) -> Request | None:
        return self._requests.pop(0) if self._requests else None

    def send(self, reply: Reply) -> None:
        self.sent.append(reply.id)
        if reply.id == 0:
            self._requests += self._live


async def test_a_foreign_checkpoint_is_refused_and_the_child_lives() -> None:
    async with working() as (worker, _):
        with pytest.raises(CheckpointRefused):
            await worker.load(b"nonsense")
        await worker.load(None)
        assert worker.restarts == 0


async def test_calls_before_the_child_is_ready_say_so() -> None:
    worker = LearnerWorker(CONFIG)
    with pytest.raises(LearnerUnavailable):
        await worker.predict(make_candle(0))


async def test_a_child_that_keeps_dying_ends_the_service() -> None:
    async with working(WorkerLimits(hang_seconds=60, start_seconds=100, deaths=2, deaths_window_seconds=100)) as (
        worker,
        task,
    ):
        await worker.load(None)
        await killed(worker)
        assert worker.pid is not None
        os.kill(worker.pid, signal.SIGKILL)
        with pytest.raises(LearnerKeepsDying, match="died 2 times"):
            await task


async def test_no_child_is_left_behind() -> None:
    async with working() as (worker, _):
        await worker.load(None)
        pid = worker.pid
    assert pid is not None
    assert not psutil.pid_exists(pid)
