"""Preview: what a learner would know after candles that it did not live through."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from models.candle import Candle
from models.config import LearnerConfig
from models.experts import Context, start_context
from models.features import Features
from models.label import direction_index
from models.records import PREVIEW_CANDLES
from models.replay import token
from models.window import Window


@dataclass(frozen=True, slots=True)
class Known:
    """The newest ``features``, the experts' ``context`` and the branch's ``tokens`` (T, TOKEN) after some candles."""

    features: Features
    context: Context
    tokens: npt.NDArray[np.float32]

    @classmethod
    def after(cls, candles: Sequence[Candle], config: LearnerConfig) -> Known:
        """Read the last PREVIEW_CANDLES of some consecutive candles.

        Raises ValueError for fewer than 2 candles or a hole.
        """
        if len(candles) < 2:
            raise ValueError(f"{len(candles)} candles were given, at least 2 are needed")
        window, tokens, context = Window(config.interval_ms, config.tick), [], start_context()
        tail = candles[-PREVIEW_CANDLES:]
        quiet = max(0, len(tail) - config.candles)
        for number, candle in enumerate(tail):
            before = window.last
            if before is not None and not window.follows(candle):
                raise ValueError(f"candle {candle.open_time} does not follow {before.open_time}")
            if number < quiet:
                window.follow(candle)
                continue
            features = window.add(candle)
            tokens.append(token(features))
            direction = direction_index(before.close, candle.close, config.tick) if before else None
            context = context.after(direction, features.joined)
        padded = np.zeros((config.candles, len(tokens[0])), np.float32)
        padded[-len(tokens) :] = tokens
        return cls(features, context, padded)
