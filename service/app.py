"""Composition root: the only file that names concrete classes and says how they are put together."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import functools
import hashlib
import signal
import socket
from collections.abc import AsyncIterator, Coroutine, Iterator
from importlib.metadata import version
from typing import Any

import structlog
import uvicorn
from tenacity import (
    AsyncRetrying,
    RetryCallState,
    retry_if_exception_type,
    stop_after_attempt,
    stop_after_delay,
    stop_never,
    wait_random_exponential,
)

from models.config import STATE_VERSION, LearnerConfig
from service.api.app import create_api
from service.api.deps import ApiDeps, ApiOptions
from service.api.sockets import listen, server_config
from service.broadcast import Broadcaster
from service.clock import now_ms
from service.feed.exchange import ExchangeFeed
from service.feed.pace import Manners
from service.feed.timing import FeedTiming
from service.learner_child import LearnerChild
from service.market import FollowedMarket
from service.pipeline import MarketPipeline, PipelineOptions
from service.ports import FeedUnreachable, LiveMarket, StoreUnavailable
from service.pretrained import read_pretrained
from service.settings import Settings, is_loopback
from service.simulator.server import SimulatedExchange
from service.storage import (
    MarketTaken,
    SqlCheckpointStore,
    SqlRecordStore,
    check_integrity,
    market_lease,
    migrate,
    open_database,
)
from service.storage.database import Database
from service.waiting import WaitingMarket
from service.worker import LearnerWorker, WorkerLimits

log = structlog.get_logger(__name__)

DATABASE_WAIT_SECONDS = 60
LEASE_RETRY_SECONDS = 3.0
PRUNE_EVERY_SECONDS = 3600.0
TIMING = FeedTiming(close_seconds=2.5)
"""Stopping takes at most 8 s: 3 for what is to be stored, then sockets and feeds close side by side."""
PATIENT_TIMING = dataclasses.replace(TIMING, connect_seconds=30)
"""An exchange's list of markets is megabytes: with nothing to fall back on, a slow line may take its time."""
DAY_MS = 86_400_000
HANG_SECONDS = {"small": 3.0, "base": 15.0, "large": 120.0}


async def serve(settings: Settings, children: list[LearnerChild]) -> None:
    """Run the service until SIGTERM or Ctrl-C. Raises LivewickError with one clear line when it cannot go on.

    ``children`` are learners' processes that were started already; those taken out are this function's.
    """
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    with contextlib.closing(listen(settings.host, settings.port)) as sock:
        if not await done_before(stop, prepare_database(settings.database_url)):
            return
        async with open_database(settings.database_url) as database:
            await Service(settings, database, children).run(sock, stop)


class Service:
    """One process of Livewick: the API and a pipeline per symbol."""

    def __init__(self, settings: Settings, database: Database, children: list[LearnerChild]) -> None:
        self._settings = settings
        self._children = children
        self._database = database
        self._store = SqlRecordStore(database)
        self._checkpoints = SqlCheckpointStore(database, settings.checkpoint_url or None)
        self._broadcaster = Broadcaster(first_seq=now_ms())
        self._markets: dict[str, LiveMarket] = {}
        self._pipelines: list[MarketPipeline] = []
        self._manners = Manners(TIMING)

    async def run(self, sock: socket.socket, stop: asyncio.Event) -> None:
        """Serve and follow every symbol; if one task fails, all end and its error is raised."""
        server = self._server()
        async with asyncio.TaskGroup() as group:
            http = group.create_task(server.serve(sockets=[sock]), name="http")
            followers = [
                group.create_task(self._follow(symbol), name=f"follow {symbol}") for symbol in self._settings.symbols
            ]
            followers.append(group.create_task(self._prune(), name="prune"))
            host, port = sock.getsockname()[:2]
            log.info("Livewick serves", url=f"http://{host}:{port}", version=version("livewick"))
            await stop.wait()
            log.info("stopping")
            await asyncio.gather(*(pipeline.close() for pipeline in self._pipelines))
            await self._broadcaster.close()
            server.should_exit = True
            for follower in followers:
                follower.cancel()
            await http

    def _server(self) -> uvicorn.Server:
        settings = self._settings
        options = ApiOptions(
            api_keys=settings.api_keys,
            allowed_origins=settings.allowed_origins,
            allowed_hosts=settings.allowed_hosts or default_hosts(settings),
            trusted_proxies=settings.trusted_proxies,
            version=version("livewick"),
        )
        api = create_api(ApiDeps(self._markets, self._store, self._broadcaster, now_ms, options))
        return QuietServer(server_config(api))

    # --- one market -------------------------------------------------------------------------------------------------

    async def _follow(self, symbol: str) -> None:
        """Reach the exchange, become the market's trainer, and run its pipeline."""
        async with self._open_feed(symbol) as feed:
            await self._train(feed)

    @contextlib.asynccontextmanager
    async def _open_feed(self, symbol: str) -> AsyncIterator[ExchangeFeed]:
        settings = self._settings
        if settings.feed != "simulated":
            async with contextlib.AsyncExitStack() as stack:
                feed = await self._reach(stack, symbol)
                if feed is not None:
                    yield feed
                    return
            log.warning(
                "THE EXCHANGE CANNOT BE REACHED: FOLLOWING THE SIMULATED EXCHANGE. No number shown is a real price.",
                exchange=settings.exchange,
            )
        async with self._simulated(symbol) as feed:
            yield feed

    async def _reach(self, stack: contextlib.AsyncExitStack, symbol: str) -> ExchangeFeed | None:
        """Enter the real exchange's feed; None when ``auto`` gives up on it. ``exchange`` tries for ever."""
        settings = self._settings
        name = f"{settings.exchange}:{symbol}"
        waiting = self._wait(name, f"connecting to {settings.exchange}")
        retrying = AsyncRetrying(
            retry=retry_if_exception_type(FeedUnreachable),
            wait=wait_random_exponential(multiplier=1, max=30),
            stop=stop_after_attempt(1) if settings.feed == "auto" else stop_never,
            before_sleep=functools.partial(self._note_unreachable, waiting),
            reraise=True,
        )
        try:
            async for attempt in retrying:
                with attempt:
                    return await stack.enter_async_context(
                        ExchangeFeed(
                            exchange=settings.exchange,
                            symbol=symbol,
                            timeframe=settings.timeframe,
                            ccxt_config=settings.ccxt,
                            timing=TIMING if settings.feed == "auto" else PATIENT_TIMING,
                            manners=self._manners,
                        )
                    )
        except FeedUnreachable as error:
            log.warning("exchange cannot be reached", exchange=settings.exchange, reason=str(error))
            self._markets.pop(name, None)
        return None

    def _note_unreachable(self, waiting: WaitingMarket, state: RetryCallState) -> None:
        error = state.outcome.exception() if state.outcome else None
        if state.attempt_number == 1:
            log.warning("exchange cannot be reached, trying for ever", market=waiting.market, reason=str(error))
        waiting.reason = f"the exchange cannot be reached: {error}"

    @contextlib.asynccontextmanager
    async def _simulated(self, symbol: str) -> AsyncIterator[ExchangeFeed]:
        async with (
            SimulatedExchange(symbols=[symbol], seed=self._settings.seed) as exchange,
            ExchangeFeed(
                exchange="binance",
                symbol=symbol,
                timeframe=self._settings.timeframe,
                ccxt_config=exchange.ccxt_config(),
                simulated=True,
                market=f"simulated:{symbol}",
                timing=TIMING,
            ) as feed,
        ):
            yield feed

    async def _train(self, feed: ExchangeFeed) -> None:
        """Run the market's pipeline once no other process does."""
        async with contextlib.AsyncExitStack() as stack:
            await self._become_trainer(stack, feed.market)
            pipeline = self._pipeline(feed)
            self._markets[feed.market] = FollowedMarket(pipeline)
            self._pipelines.append(pipeline)
            if feed.state().simulated:
                pipeline.tell_simulated("the feed is the built-in simulated exchange")
            await pipeline.run()

    async def _become_trainer(self, stack: contextlib.AsyncExitStack, market: str) -> None:
        """Take the market's lease; while another process has it, serve what is stored and try again.

        Raises MarketTaken on SQLite at once: a second process on the same file is a mistake, not a replica.
        """
        while True:
            try:
                await stack.enter_async_context(market_lease(self._database, market))
                return
            except MarketTaken as error:
                if self._database.address.is_sqlite:
                    raise
                reason = f"{error}; this process serves what is stored"
            except StoreUnavailable as error:
                reason = str(error)
            if market not in self._markets or self._markets[market].status().reason != reason:
                log.warning("not the trainer", market=market, reason=reason)
                self._wait(market, reason)
            await asyncio.sleep(LEASE_RETRY_SECONDS)

    def _wait(self, market: str, reason: str) -> WaitingMarket:
        waiting = WaitingMarket(market, self._settings.interval_ms, self._settings.exchange, reason)
        self._markets[market] = waiting
        return waiting

    def _pipeline(self, feed: ExchangeFeed) -> MarketPipeline:
        config = self._settings.learner(feed.market, feed.interval_ms, feed.tick, feed.state().simulated)
        limits = WorkerLimits(hang_seconds=HANG_SECONDS[config.model])
        worker = LearnerWorker(config, limits, first=self._children.pop() if self._children else None)
        pretrained = read_pretrained(self._settings.pretrained)
        options = PipelineOptions(
            config=run_identity(config, self._settings.timeframe, pretrained),
            pretrained=pretrained,
            backfill=self._settings.backfill,
            checkpoint_every=self._settings.checkpoint_every,
        )
        return MarketPipeline(feed, worker, self._store, self._checkpoints, self._broadcaster, options)

    # --- house-keeping ----------------------------------------------------------------------------------------------

    async def _prune(self) -> None:
        """Delete what is older than RETENTION_DAYS, once an hour and in small batches."""
        while self._settings.retention_days:
            try:
                await self._store.prune(now_ms() - self._settings.retention_days * DAY_MS)
            except StoreUnavailable as error:
                log.warning("old records could not be pruned now", reason=str(error))
            await asyncio.sleep(PRUNE_EVERY_SECONDS)


class QuietServer(uvicorn.Server):
    """uvicorn that leaves signals to us: its own handling raises them again after shutdown."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def default_hosts(settings: Settings) -> tuple[str, ...]:
    """Return the Host headers believed: without keys on loopback, a page elsewhere may not pose as this one by name."""
    open_on_loopback = is_loopback(settings.host) and not settings.api_keys
    return ("localhost", "127.0.0.1", "::1", settings.host) if open_on_loopback else ()


def run_identity(config: LearnerConfig, timeframe: str, pretrained: bytes | None) -> dict[str, Any]:
    """Return what makes a run this run: everything that decides its numbers, the device and the clock aside."""
    identity = dataclasses.asdict(config)
    for aside in ("device", "simulated", "interval_ms"):
        del identity[aside]
    return {
        **identity,
        "window": config.candles,
        "learning_rate": config.rate,
        "timeframe": timeframe,
        "state_version": STATE_VERSION,
        "pretrained": hashlib.sha256(pretrained).hexdigest() if pretrained else None,
    }


async def done_before(stop: asyncio.Event, work: Coroutine[Any, Any, None]) -> bool:
    """Do the work unless ``stop`` comes first, which cancels it; says whether it was done."""
    task, stopped = asyncio.ensure_future(work), asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait((task, stopped), return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            task.result()
            return True
        return False
    finally:
        for waiting in (task, stopped):
            waiting.cancel()
        await asyncio.gather(task, stopped, return_exceptions=True)


async def prepare_database(url: str) -> None:
    """Check and migrate, waiting up to a minute for a PostgreSQL that is still starting. Raises StoreUnavailable."""
    await check_integrity(url)
    retrying = AsyncRetrying(
        retry=retry_if_exception_type(StoreUnavailable),
        wait=wait_random_exponential(multiplier=0.5, max=5),
        stop=stop_after_attempt(1) if url.startswith("sqlite") else stop_after_delay(DATABASE_WAIT_SECONDS),
        before_sleep=_note_database_away,
        reraise=True,
    )
    await retrying(migrate, url)


def _note_database_away(state: RetryCallState) -> None:
    if state.attempt_number == 1:
        error = state.outcome.exception() if state.outcome else None
        log.warning("database cannot be reached, trying for a minute", reason=str(error))
