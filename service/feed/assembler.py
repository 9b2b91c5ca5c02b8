"""Assembler: rows from socket and REST in, closed ordered candles out, each once. Pure: no clock, no I/O."""

from __future__ import annotations

from collections import Counter, OrderedDict, deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from models.candle import Candle, InvalidCandle
from models.grid import flat_candle
from service.feed.absence import Absence
from service.feed.rows import Grid, read_candle, same_values
from service.ports import Correction, FeedItem, Gap

REMEMBERED_CANDLES = 2_000
MAX_FILL_CANDLES = 60


@dataclass(frozen=True, slots=True)
class AssemblerRules:
    """What the assembler may conclude; times in ms.

    ``flagged``: the socket says which frame is final. ``dense``: the exchange has a candle for every interval, traded
    or not, so a missing one is a hole and no quiet interval. ``built``: rows are made of trades, and one without volume
    was filled in.
    """

    flagged: bool = True
    dense: bool = True
    built: bool = False
    gap_tries: int = 4
    future_ms: int = 5_000
    rest_grace_ms: int = 3_000
    backfill_after_ms: int = 10_000
    pending_candles: int = 2_000
    out_items: int = 5_000


@dataclass(slots=True)
class AssemblerCounts:
    """Totals since the start; ``rejected`` by reason."""

    handed_out: int = 0
    backfilled: int = 0
    filled: int = 0
    gaps: int = 0
    corrections: int = 0
    repeated: int = 0
    rejected: Counter[str] = field(default_factory=Counter)


@dataclass(frozen=True, slots=True)
class Answer:
    """What one REST answer was worth: valid rows, refused rows, the newest open time, the newest with a trade in it."""

    valid: int
    refused: int
    newest: int | None
    newest_traded: int | None = None


class Assembler:
    """Decides what is closed and hands it out in order, each candle once.

    ``next_open`` is the open time of the candle that must come next. A candle is closed when the socket says so (or,
    where it never says so, when the next one begins), or when REST has it and a later one. REST wins over the socket:
    a candle that REST tells differently after it was handed out comes again as a Correction. ``resuming`` says that
    the consumer has the candle before ``next_open``, so a hole right there is a Gap too. ``recent`` are candles the
    consumer has from earlier: they are corrected like those handed out. ``oldest`` is where what is known begins.
    """

    def __init__(
        self,
        market: str,
        grid: Grid,
        next_open: int,
        rules: AssemblerRules | None = None,
        *,
        resuming: bool = False,
        recent: Sequence[Candle] = (),
    ) -> None:
        self.market = market
        self.grid = grid
        self.next_open = next_open
        self.newest_seen: int | None = None
        self.counts = AssemblerCounts()
        self.suspects: set[int] = set()
        self._rules = rules or AssemblerRules()
        self._resuming = resuming
        self._forming: Candle | None = None
        # Full: the candle furthest ahead is forgotten; REST gives it again when its turn comes.
        self._pending: dict[int, Candle] = {}
        self._recent: OrderedDict[int, Candle] = OrderedDict()
        self._holes: deque[Gap] = deque(maxlen=64)
        # Full: nothing more is handed out; candles wait in _pending until the consumer has caught up.
        self._out: deque[FeedItem] = deque()
        self._absence = Absence(grid.interval_ms, self._rules.gap_tries if self._rules.dense else 1)
        for candle in sorted(recent, key=lambda candle: candle.open_time)[-REMEMBERED_CANDLES:]:
            if candle.open_time < next_open:
                self._remember(candle)
        self.last = self._recent.get(next_open - grid.interval_ms)
        self.oldest = min(self._recent, default=next_open)

    # --- in -----------------------------------------------------------------------------------------------------------

    def offer(self, row: object, closed: bool, now_ms: float) -> None:
        """Take one row from the socket; ``closed`` is the exchange's own flag, ignored where rules say unflagged."""
        try:
            candle = read_candle(self.market, row, self.grid, now_ms + self._rules.future_ms)
        except InvalidCandle as error:
            self.counts.rejected[error.reason] += 1
            return
        if candle.open_time > (self.newest_seen or 0):
            self.newest_seen = candle.open_time
        if not self._rules.flagged:
            self._form(candle)
        elif closed:
            self._close(candle)
        self._advance()

    def disconnected(self) -> None:
        """Forget the candle that was forming: what the socket last said of it may not be its end."""
        self._forming = None

    def answer(self, rows: object, since: int, now_ms: float) -> Answer:
        """Take a REST answer to "candles from ``since`` on", asked at ``now_ms`` by the exchange's clock."""
        candles, refused = self._read(rows, now_ms)
        newest = max(candles, default=None)
        if newest is None:
            return Answer(0, refused, None)
        closed = {time: candle for time, candle in candles.items() if self._is_over(time, newest, now_ms)}
        for time in sorted(closed):
            self._confirm(closed[time], now_ms)
        self.suspects -= {time for time in self.suspects if time <= newest}
        first = max(self.next_open, self.grid.floor(since + self.grid.interval_ms - 1))
        end = newest if self._rules.dense else self._quiet_until(newest, now_ms)
        self._absence.count(self.next_open, range(first, end, self.grid.interval_ms), closed, spoilt=refused > 0)
        self._advance()
        traded = max((time for time, candle in candles.items() if candle.volume > 0), default=None)
        return Answer(len(candles), refused, newest, traded)

    def give_up(self, reason: str) -> None:
        """Go on after the hole before the earliest waiting candle, with a Gap."""
        if self._pending:
            self._skip(min(self._pending), reason)
            self._advance()

    # --- out ----------------------------------------------------------------------------------------------------------

    def take(self) -> FeedItem | None:
        """Hand out the next item, None when there is nothing yet."""
        item = self._out.popleft() if self._out else None
        self._advance()
        return item

    @property
    def congested(self) -> bool:
        """Whether the consumer is so far behind that asking for more is pointless."""
        return len(self._out) >= self._rules.out_items

    @property
    def missing(self) -> bool:
        """Whether a later candle is known though ``next_open`` is not closed yet."""
        return bool(self._pending) or (self.newest_seen or 0) > self.next_open

    @property
    def waiting(self) -> int:
        return len(self._pending)

    # --- deciding -----------------------------------------------------------------------------------------------------

    def _form(self, candle: Candle) -> None:
        forming = self._forming
        if forming is not None and candle.open_time > forming.open_time:
            self._close(forming)
        if forming is None or candle.open_time >= forming.open_time:
            self._forming = candle
        else:
            self._close(candle)

    def _close(self, candle: Candle) -> None:
        """Take the socket's word that a candle is over."""
        time = candle.open_time
        known = self._recent.get(time) or self._pending.get(time)
        if known is not None:
            self.counts.repeated += 1
            if not same_values(known, candle):
                self.suspects.add(time)
        elif time >= self.next_open:
            self._hold(candle)

    def _confirm(self, candle: Candle, now_ms: float) -> None:
        """Take REST's word for a candle that is over."""
        time = candle.open_time
        known = self._recent.get(time)
        if time >= self.next_open:
            late = now_ms - (time + self.grid.interval_ms) > self._rules.backfill_after_ms
            held = self._pending.get(time)
            source = held.source if held is not None else ("backfill" if late else "live")
            self._hold(replace(candle, source=source))
        elif known is not None:
            if not same_values(known, candle):
                self._correct(replace(candle, source=known.source if known.source != "filled" else "backfill"))
        elif self._was_hole(time):
            self._correct(replace(candle, source="backfill"))
        elif time == self.next_open - self.grid.interval_ms and self.last is None:
            self.last = candle

    def _correct(self, candle: Candle) -> None:
        self.counts.corrections += 1
        self._remember(candle)
        if self.last is not None and self.last.open_time == candle.open_time:
            self.last = candle
        self._out.append(Correction(candle))

    def _hold(self, candle: Candle) -> None:
        self._pending[candle.open_time] = candle
        if len(self._pending) > self._rules.pending_candles:
            del self._pending[max(self._pending)]

    def _advance(self) -> None:
        while not self.congested:
            candle = self._pending.pop(self.next_open, None)
            if candle is not None:
                self._hand_out(candle)
            elif self._absence.sure(self.next_open):
                self._skip(self._end_of_hole(), "the exchange has no candles here")
            else:
                return

    def _hand_out(self, candle: Candle) -> None:
        if self._rules.built and candle.volume == 0:
            candle = replace(candle, source="filled")
        self.counts.handed_out += 1
        self.counts.backfilled += candle.source == "backfill"
        self.counts.filled += candle.source == "filled"
        self.last = candle
        self.next_open = candle.open_time + self.grid.interval_ms
        self._remember(candle)
        self._out.append(candle)

    def _remember(self, candle: Candle) -> None:
        self._recent[candle.open_time] = candle
        if len(self._recent) > REMEMBERED_CANDLES:
            self._recent.popitem(last=False)

    # --- reading REST -------------------------------------------------------------------------------------------------

    def _read(self, rows: object, now_ms: float) -> tuple[dict[int, Candle], int]:
        if not isinstance(rows, Sequence) or isinstance(rows, str | bytes):
            self.counts.rejected["fields"] += 1
            return {}, 1
        candles: dict[int, Candle] = {}
        refused = 0
        for row in rows:
            try:
                candle = read_candle(self.market, row, self.grid, now_ms + self._rules.future_ms)
                candles[candle.open_time] = candle
            except InvalidCandle as error:
                refused += 1
                self.counts.rejected[error.reason] += 1
        return candles, refused

    def _is_over(self, time: int, newest: int, now_ms: float) -> bool:
        """An answer that holds a later candle was made after this one's end, however late the answer is.

        The clock alone can only tell where quiet intervals have no candle; it, or the answer's age, may be off.
        """
        if time < newest or self._rules.dense:
            return time < newest
        return now_ms >= time + self.grid.interval_ms + self._rules.rest_grace_ms

    def _quiet_until(self, newest: int, now_ms: float) -> int:
        """Where quiet intervals have no candle, the answer tells that it was quiet since its newest, for a minute."""
        fillable = newest + (MAX_FILL_CANDLES + 1) * self.grid.interval_ms
        return max(newest, min(self.grid.floor(now_ms - self._rules.rest_grace_ms), fillable))

    def _end_of_hole(self) -> int:
        time = self.next_open
        while self._absence.sure(time) and time not in self._pending:
            time += self.grid.interval_ms
        return time

    def _skip(self, end: int, reason: str) -> None:
        missing = (end - self.next_open) // self.grid.interval_ms
        if not self._rules.dense and self.last is not None and missing <= MAX_FILL_CANDLES:
            for time in range(self.next_open, end, self.grid.interval_ms):
                self._hand_out(flat_candle(self.last, time))
            return
        gap = Gap(self.market, self.next_open, end, reason)
        self.next_open = end
        # Before the first candle there is nothing that a hole could interrupt.
        if self.counts.handed_out or self._resuming:
            self.counts.gaps += 1
            self._holes.append(gap)
            self._out.append(gap)

    def _was_hole(self, time: int) -> bool:
        return any(hole.start <= time < hole.end for hole in self._holes)
