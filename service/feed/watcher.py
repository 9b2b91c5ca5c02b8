"""Watcher: keeps one socket open, and drops it when candle time no longer advances."""

from __future__ import annotations

import asyncio
import contextlib

from service.feed.assembler import Assembler
from service.feed.client import CallFailed, ExchangeClient
from service.feed.clock import ExchangeClock
from service.feed.pace import Backoff, DialBudget
from service.feed.reconciler import Reconciler
from service.feed.timing import FeedTiming
from service.feed.trouble import Trouble

_LOOK_MS = 1_000


class Watcher:
    """Watches the socket for ever; ``reconnects`` counts dials after the first, ``trouble`` is None while it works."""

    def __init__(
        self,
        client: ExchangeClient,
        assembler: Assembler,
        reconciler: Reconciler,
        clock: ExchangeClock,
        timing: FeedTiming,
        budget: DialBudget,
        backoff: Backoff,
    ) -> None:
        self._dials = 0
        self.trouble: Trouble | None = None
        self._client = client
        self._assembler = assembler
        self._reconciler = reconciler
        self._clock = clock
        self._timing = timing
        self._budget = budget
        self._backoff = backoff
        self._dialled_at = 0.0
        self._advanced_at = 0.0
        self._renew_at = 0.0
        self._newest: int | None = None

    @property
    def reconnects(self) -> int:
        return max(0, self._dials - 1)

    async def run(self) -> None:
        while True:
            await self._dial()
            try:
                await self._watch()
            except asyncio.CancelledError:
                task = asyncio.current_task()
                if task is not None and task.cancelling():
                    raise
                await self._lost(Trouble("the socket was closed"))
            except CallFailed as failure:
                await self._lost(failure.trouble)

    async def _dial(self) -> None:
        """Take the leave to dial from the budget, when the next watch is going to dial."""
        await self._budget.take()
        self._dials += 1
        self._dialled_at = self._advanced_at = now = self._clock.elapsed_ms()
        self._renew_at = now + self._timing.renew_seconds * 1_000 * self._timing.speed

    async def _watch(self) -> None:
        """Watch one socket until it fails, raises or brings nothing new for too long."""
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_LOOK_MS / 1_000 / self._timing.speed):
                    await self._client.watch()
            self._look()
            if self._clock.elapsed_ms() > self._renew_at and self._budget.wait_seconds() == 0:
                await self._renew()

    async def _renew(self) -> None:
        """Open a new socket before the exchange cuts the old one, and close the old one once the new one works.

        Where the new one does not, an old one that is still open is kept, and another try made later.
        """
        old = self._client.next_socket()
        await self._dial()
        trouble = await self._try_new_socket()
        if trouble is None:
            await self._client.drop_sockets(keep=self._client.sockets - old)
            return
        await self._client.back_to(old)
        if not self._client.connected:
            raise CallFailed(trouble)
        self._renew_at = self._clock.elapsed_ms() + self._timing.renew_again_seconds * 1_000 * self._timing.speed

    async def _try_new_socket(self) -> Trouble | None:
        try:
            async with asyncio.timeout(2 * self._timing.request_seconds):
                await self._client.watch()
        except TimeoutError:
            return Trouble("the new socket brought nothing")
        except CallFailed as failure:
            return failure.trouble
        return None

    def _look(self) -> None:
        now = self._clock.elapsed_ms()
        newest = self._assembler.newest_seen
        if newest != self._newest:
            self._newest, self._advanced_at = newest, now
            if self.trouble is not None:
                self.trouble = None
                self._reconciler.reread_now()
            self._backoff.succeeded()
            return
        if (
            not self._client.connected
            and now - self._dialled_at > self._timing.request_seconds * 1_000 * self._timing.speed
        ):
            raise CallFailed(Trouble("the exchange did not answer the socket's handshake"))
        silent = now - self._advanced_at - self._assembler.grid.interval_ms
        limit = self._timing.drop_after_ms if self._is_behind() else self._timing.quiet_drop_ms
        if silent > limit:
            raise CallFailed(Trouble(f"the socket brought no new candle for {silent / 1_000:.0f} s"))

    def _is_behind(self) -> bool:
        """Whether REST knows more than the socket, or cannot be asked: then silence is not a quiet market."""
        newest = self._reconciler.newest
        if self._reconciler.trouble is not None or newest is None:
            return True
        return newest > (self._newest or 0) + self._assembler.grid.interval_ms

    async def _lost(self, trouble: Trouble) -> None:
        self.trouble = trouble
        self._assembler.disconnected()
        await self._client.drop_sockets()
        self._reconciler.reread_now()
        await asyncio.sleep(self._backoff.failed(trouble))
