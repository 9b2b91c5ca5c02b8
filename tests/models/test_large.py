from statistics import mean
from typing import Any

import pytest

from models.config import LearnerConfig
from models.learner import Learner
from tests.models.streams import TICK, stream


def losses(candles: int, **settings: Any) -> list[float]:
    made = Learner(LearnerConfig("m", tick=TICK, **settings))
    taken = []
    for candle in stream(candles):
        made.predict(candle, 0)
        step = made.learn(candle).step
        taken += [] if step.train_loss is None else [step.train_loss]
    return taken


def test_base_learns_alike_with_and_without_gradient_checkpointing() -> None:
    plain = losses(25, model="base")
    assert plain == losses(25, model="base", gradient_checkpointing=True)
    assert len(plain) == 24


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_large_trains_two_hundred_steps_with_falling_loss_checkpointing_on_and_off_alike() -> None:
    plain = losses(201, model="large")
    assert len(plain) == 200
    assert mean(plain[-50:]) < mean(plain[:50])
    assert losses(201, model="large", gradient_checkpointing=True) == pytest.approx(plain, rel=1e-6)
