"""Health: how one stream of the feed is doing, told honestly at any moment."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from models.candle import Candle
from service.feed.assembler import Assembler
from service.feed.clock import ExchangeClock
from service.feed.reconciler import Reconciler
from service.feed.timing import FeedTiming
from service.feed.watcher import Watcher
from service.ports import FeedItem, FeedState, FeedStatus, Notice


@dataclass(slots=True)
class Health:
    """Reads the parts of one stream; keeps only what they do not know.

    ``lag_ms`` is from the last live candle's close to its being handed out. ``told_stale``: the consumer's last notice
    was ``stale``.
    """

    assembler: Assembler
    reconciler: Reconciler
    watcher: Watcher
    clock: ExchangeClock
    timing: FeedTiming
    backfill_total: int
    lag_ms: float | None = None
    told_stale: bool = False

    @property
    def stale_at_ms(self) -> float:
        """When, by the exchange's clock, the feed must be called stale if no candle comes."""
        return self.assembler.next_open + self.assembler.grid.interval_ms + self.timing.stale_after_ms

    def measure(self, item: FeedItem) -> None:
        """Take the lag of a live candle that is being handed out."""
        if isinstance(item, Candle) and item.source == "live":
            self.lag_ms = round(self.clock.now_ms() - item.open_time - self.assembler.grid.interval_ms, 3)

    def notice(self) -> Notice | None:
        """Say once that the feed went stale, and once that it is back."""
        stale = self.reconciler.caught_up and self.clock.now_ms() >= self.stale_at_ms
        if stale == self.told_stale:
            return None
        self.told_stale = stale
        _, reason = self.status()
        detail = {"age_ms": self.age_ms(), "last_open_time": self._last_open_time(), "reason": reason}
        return Notice("stale" if stale else "recovered", detail)

    def age_ms(self) -> int | None:
        """Return the time since the last candle closed, None before the first."""
        last = self._last_open_time()
        if last is None:
            return None
        return max(0, round(self.clock.now_ms() - last - self.assembler.grid.interval_ms))

    def status(self) -> tuple[FeedStatus, str]:
        """Return the status and, unless it is live, the reason for people."""
        now, interval = self.clock.now_ms(), self.assembler.grid.interval_ms
        ahead_ms = self.assembler.next_open - now
        if ahead_ms > 2 * interval:
            return "stale", f"the last known candle is {ahead_ms / 1_000:.0f} s ahead of the exchange's clock"
        if now < self.stale_at_ms:
            return "live", ""
        asked, watched = self.reconciler.trouble, self.watcher.trouble
        trouble = asked or watched
        reason = trouble.text if trouble is not None else ""
        if asked is not None and watched is not None:
            return "unreachable", reason
        if self.reconciler.progressing or not self.reconciler.caught_up:
            return "backfilling", reason
        return "stale", reason or "the exchange sends no newer candles"

    def state(self, exchange: str, simulated: bool, malformed: int) -> FeedState:
        counts = self.assembler.counts
        status, detail = self.status()
        rejected = counts.rejected + Counter({"malformed": malformed})
        return FeedState(
            exchange=exchange,
            simulated=simulated,
            status=status,
            detail=detail,
            last_open_time=self._last_open_time(),
            age_ms=self.age_ms(),
            lag_ms=self.lag_ms,
            reconnects=self.watcher.reconnects,
            backfilled=counts.backfilled,
            backfill_total=self.backfill_total,
            filled=counts.filled,
            gaps=counts.gaps,
            corrections=counts.corrections,
            rejected=dict(rejected),
        )

    def _last_open_time(self) -> int | None:
        return self.assembler.last.open_time if self.assembler.counts.handed_out and self.assembler.last else None
