"""Learner: predict each next candle, then learn from it; the whole state of one run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from models.candle import Candle
from models.candle_network import CandleNetwork, Opinion
from models.checkpoint import SCHEMA, IncompatibleState, check_fits, hash_state
from models.config import LearnerConfig
from models.drift import Drift
from models.experts import Context, start_context
from models.features import EVEN_NAMES, ODD_NAMES, Features
from models.inputs import inputs
from models.interval import Interval
from models.label import direction_index
from models.made import Made, restored
from models.objective import Sample
from models.panel import FORECASTERS, Panel
from models.preview import Known
from models.records import (
    DIRECTIONS,
    Learned,
    LearnerEvent,
    Prediction,
    ScoreWindow,
    Skip,
    Step,
    Trend,
    TrendOutcome,
)
from models.replay import Replay
from models.score import Score, Scored
from models.stepper import Stepper
from models.trainer import TrainStep
from models.trends import Trends
from models.window import Window

LARGEST_MOVE = 4.0
"""Moves are cut at so many typical ones before anything is trained on them."""
_PARTS = ("replay", "stepper", "panel", "interval", "scores", "drift", "trends")
_MODEL, _MARKOV = FORECASTERS.index("model"), FORECASTERS.index("markov")


class Learner:
    """One market's learner. Per candle: ``predict`` once, then ``learn`` once, in order of time."""

    def __init__(self, config: LearnerConfig) -> None:
        self.config = config
        self.step = 0
        self.last_open_time: int | None = None
        self.paused = False
        self.skips: Counter[str] = Counter()
        self.window = Window(config.interval_ms, config.tick)
        self.replay = Replay(config.candles)
        self.stepper = Stepper(config)
        self.panel = Panel()
        self.interval = Interval()
        self.scores = Score(config.market)
        self.drift = Drift()
        self._context = start_context()
        self._due: Made | None = None  # made for the candle now being handled
        self._made: Made | None = None  # made for the next candle
        self.trends = Trends(config.trend_horizon)
        self._backfilling = False  # a filler counts as what it fills between

    @property
    def newest(self) -> Made | None:
        """The prediction for the next candle, with what was known when it was made."""
        return self._made

    @property
    def network(self) -> CandleNetwork:
        """The network that learns."""
        return self.stepper.network

    def begin(self) -> None:
        """Keep what was learned and forget where: empty window, fresh scores, the next candle may have any time."""
        config = self.config
        self.window = Window(config.interval_ms, config.tick)
        self.scores = Score(config.market)
        self.drift = Drift()
        self.trends.clear()
        self._due = self._made = None
        self.last_open_time = None

    def predict(self, candle: Candle, made_at: int) -> Prediction:
        """Append the candle to the window and predict the next one; no weight changes.

        Raises ValueError when the candle is not later than the last one, or the last one was not learned yet.
        """
        before = self.window.last
        if before is not None and before.open_time != self.last_open_time:
            raise ValueError(f"candle {before.open_time} was predicted from and not learned")
        follows = self.window.follows(candle)
        features = self.window.add(candle)
        self._due = self._made if follows else None
        if not follows:
            self.trends.clear()
        direction = direction_index(before.close, candle.close, self.config.tick) if before and follows else None
        self._context = self._context.after(direction, features.joined)
        row = self.replay.add(features, self.window.age)
        opinion = self.stepper.opinions([inputs(features)], self.replay.windows(np.array([row])))[0]
        self._made = self._make(candle, features, self._context, opinion, row, made_at)
        self.trends.add(self._made, inputs(features).plain_odd)
        return self._made.prediction

    def learn(self, candle: Candle) -> Learned:
        """Score the prediction made for this candle, then train one step on it.

        Raises ValueError when ``predict`` was not called with this candle just before.
        """
        if self.window.last != candle or self.last_open_time == candle.open_time:
            raise ValueError(f"candle {candle.open_time} was not predicted from just before")
        first, self.last_open_time = self.last_open_time is None, candle.open_time
        if candle.source != "filled":
            self._backfilling = candle.source == "backfill"
        due, self._due = self._due, None
        if due is None:
            return Learned(self._step(candle, None, None, None, "warmup" if first else "gap"))
        return self._learn(candle, due)

    def pause(self) -> None:
        """Stop learning: candles are still predicted and scored."""
        self.paused = True

    def resume(self) -> None:
        """Learn again."""
        self.paused = False

    def preview(self, candles: Sequence[Candle], made_at: int) -> Prediction:
        """Predict what follows some consecutive candles, of which the last PREVIEW_CANDLES count; changes nothing."""
        return self.preview_many([candles], made_at)[0]

    def preview_many(self, requests: Sequence[Sequence[Candle]], made_at: int) -> list[Prediction]:
        """Predict what follows each of some runs of candles, in one forward; changes nothing.

        Raises ValueError for a run with fewer than 2 candles or a hole.
        """
        known = [Known.after(candles, self.config) for candles in requests]
        tokens = np.stack([each.tokens for each in known])
        opinions = self.stepper.opinions([inputs(each.features) for each in known], tokens)
        return [
            self._make(candles[-1], each.features, each.context, opinion, -1, made_at).prediction
            for candles, each, opinion in zip(requests, known, opinions, strict=True)
        ]

    def score(self, window: ScoreWindow, live: bool) -> dict[str, Any]:
        """Give the contract's Score over a window; JSON-ready."""
        return self.scores.card(window, live)

    def short_score(self) -> dict[str, Any]:
        """Give the rolling figures that go with every step."""
        return self.scores.short(300)

    def describe(self) -> dict[str, Any]:
        """Say what the model is and how its training goes; JSON-ready."""
        return {
            "name": f"livewick-{self.config.model}",
            "step": self.step,
            "paused": self.paused,
            "window": self.config.candles,
            "trend_horizon": self.config.trend_horizon,
            "features": {"odd": ODD_NAMES, "even": EVEN_NAMES},
            "skips": dict(self.skips),
            "mixture": self.panel.mixture.shares(),
            "members": self.scores.card(None)["members"],
            "config": asdict(self.config),
        } | self.stepper.describe()

    def state_dict(self) -> dict[str, Any]:
        """Give everything that decides future numbers: tensors, numbers, strings, lists and dicts only."""
        made, due = self._made, self._due
        return {
            "schema": SCHEMA, "config": asdict(self.config), "step": self.step, "last_open_time": self.last_open_time,
            "paused": self.paused, "backfilling": self._backfilling, "skips": dict(self.skips),
            "made": made and made.state_dict(), "due": due and due.state_dict(),
            "window": self.window.state_dict(),
        } | {name: getattr(self, name).state_dict() for name in _PARTS}  # fmt: skip

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Become the learner that gave the state, at that candle. Raises IncompatibleState where it does not fit."""
        check_fits(self.config, state)
        try:
            self._load(state)
        except (LookupError, TypeError, ValueError, AttributeError, RuntimeError) as error:
            raise IncompatibleState(f"the state has other parts: {type(error).__name__}: {error}") from error

    def _load(self, state: dict[str, Any]) -> None:
        self.step, self.last_open_time = state["step"], state["last_open_time"]
        self.paused, self._backfilling = state["paused"], state["backfilling"]
        self.skips = Counter(state["skips"])
        self._made, self._due = (state[name] and restored(state[name]) for name in ("made", "due"))
        self._context = self._made.context if self._made else start_context()
        self.window.load_state_dict(state["window"])
        for name in _PARTS:
            getattr(self, name).load_state_dict(state[name])

    def weights_hash(self) -> str:
        """Hash everything that learns: network, optimizer, experts, mixture and interval (SHA-256, hex)."""
        return hash_state({name: getattr(self, name).state_dict() for name in ("stepper", "panel", "interval")})

    # --- one candle -------------------------------------------------------------------------------------------------

    def _make(
        self, candle: Candle, features: Features, context: Context, opinion: Opinion, row: int, made_at: int
    ) -> Made:
        probabilities = self.panel.predict(context, opinion)
        down, flat, up = probabilities[_MODEL].tolist()
        said, scale = opinion.network, features.scale
        expected = _price(candle.close + said.move * scale)
        prediction = Prediction(
            market=self.config.market, open_time=candle.open_time + self.config.interval_ms, made_at=made_at,
            step=self.step, p_down=down, p_flat=flat, p_up=up,
            direction=DIRECTIONS[int(probabilities[_MODEL].argmax())], close=expected,
            close_low=_price(candle.close + (said.move - self.interval.below * said.spread) * scale),
            close_high=_price(candle.close + (said.move + self.interval.above * said.spread) * scale),
            trend=Trend(self.config.trend_horizon, said.trend_up), weights=self.panel.mixture.shares(),
            simulated=self.config.simulated,
        )  # fmt: skip
        return Made(candle.close, row, features, context, opinion, probabilities, prediction)

    def _learn(self, candle: Candle, due: Made) -> Learned:
        label = direction_index(due.close, candle.close, self.config.tick)
        trend = self.trends.due(candle, self.config.tick)
        outcome = trend[1] if trend else None
        self._score(candle, due, label, outcome)
        if self.paused:
            return Learned(self._step(candle, due, label, None, "paused"), outcome)
        move = max(-LARGEST_MOVE, min(LARGEST_MOVE, (candle.close - due.close) / due.features.scale))
        self._resolve(due, label, move)
        if trend:
            self.replay.resolve_trend(trend[0], trend[2].up)
        sample = Sample(inputs(due.features), due.opinion, label, move, trend[2] if trend else None)
        taken = self.stepper.train(sample, due.row, self.replay)
        events = self._events(due, label, taken)
        return Learned(self._step(candle, due, label, taken, taken.skipped), outcome, events)

    def _score(self, candle: Candle, due: Made, label: int, trend: TrendOutcome | None) -> None:
        said = due.prediction
        self.scores.add(Scored(
            due.probabilities, label, live=not self._backfilling,
            covered=said.close_low <= candle.close <= said.close_high,
            error=abs(candle.close - said.close), persistence=abs(candle.close - due.close),
            trend=None if trend is None else trend.correct,
        ))  # fmt: skip

    def _resolve(self, due: Made, label: int, move: float) -> None:
        skip, network = due.opinion.skip, due.opinion.network
        self.panel.learn(due.context, due.probabilities, label)
        self.interval.learn(move - network.move, network.spread)
        self.replay.resolve(due.row, label, move, (skip.flat, skip.side, skip.move, skip.trend))

    def _events(self, due: Made, label: int, taken: TrainStep) -> tuple[LearnerEvent, ...]:
        events = []
        if taken.skipped is None:
            self.step += 1
        returned = self.stepper.roll_back_if_stuck()
        if returned is not None:
            events.append(LearnerEvent("rollback", {"reason": "nonfinite", "to_step": returned}))
        losses = -np.log(np.maximum(due.probabilities[:, label], 1e-12))
        if self.drift.add(float(losses[_MODEL] - losses[_MARKOV])):
            events.append(LearnerEvent("drift", {"open_time": due.prediction.open_time, "against": "markov"}))
        return tuple(events)

    def _step(
        self, candle: Candle, due: Made | None, label: int | None, taken: TrainStep | None, skipped: Skip | None
    ) -> Step:
        if skipped is not None:
            self.skips[skipped] += 1
        said = due.prediction if due else None
        given = None if due is None or label is None else float(due.probabilities[_MODEL, label])
        direction = said.direction if said else None
        name = None if label is None else DIRECTIONS[label]
        return Step(
            market=candle.market, open_time=candle.open_time, source=candle.source, step=self.step,
            loss=None if given is None else -float(np.log(given)), train_loss=taken.loss if taken else None,
            correct=None if due is None else direction == name, trend_correct=None, direction=direction, label=name,
            grad_norm=taken.grad_norm if taken else None, grad_norm_clipped=taken.grad_norm_clipped if taken else None,
            clipped=taken.clipped if taken else False, skipped=skipped, learning_rate=self.config.rate,
        )  # fmt: skip


def _price(value: float) -> float:
    return float(min(max(value, 0.0), 1e300))
