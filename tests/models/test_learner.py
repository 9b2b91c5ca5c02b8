import json
from collections.abc import Iterator
from dataclasses import asdict, replace
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from models.candle import Candle
from models.checkpoint import IncompatibleState, dump_state, load_state
from models.config import LearnerConfig
from models.inputs import inputs
from models.learner import Learner
from models.preview import Known
from models.records import Learned, Prediction
from models.stepper import PATIENCE
from tests.models.streams import START, TICK, mirrored, stream

MARKET = "simulated:ETH/USDT"


def learner(**settings: Any) -> Learner:
    return Learner(LearnerConfig(**({"market": MARKET, "tick": TICK, "window": 8, "trend_horizon": 10} | settings)))


def live(made: Learner, candles: list[Candle]) -> list[tuple[Prediction, Learned]]:
    return [(made.predict(candle, candle.open_time + 1000), made.learn(candle)) for candle in candles]


def numbers(records: list[tuple[Prediction, Learned]]) -> list[Any]:
    return [(asdict(prediction), asdict(learned)) for prediction, learned in records]


def test_per_candle_publish_then_score_then_one_forward_one_backward_one_step() -> None:
    made, happened = learner(), []
    made.network.branch.register_forward_hook(
        lambda *_: happened.append("train" if torch.is_grad_enabled() else "predict")
    )
    made.network.branch.even_head.weight.register_post_accumulate_grad_hook(lambda _: happened.append("backward"))
    handle = register_optimizer_step_post_hook(lambda *_: happened.append("step"))
    add = made.scores.add
    made.scores.add = lambda scored: (happened.append("score"), add(scored))[1]  # type: ignore[method-assign]
    candles = stream(30)
    live(made, candles[:20])
    for candle in candles[20:]:
        happened.clear()
        made.predict(candle, 0)
        assert happened == ["predict"]
        made.learn(candle)
        assert happened == ["predict", "score", "train", "backward", "step"]
    handle.remove()


def test_predicting_changes_no_weight_and_learning_changes_them() -> None:
    made = learner()
    candles = stream(12)
    live(made, candles[:10])
    before = made.weights_hash()
    made.predict(candles[10], 0)
    assert made.weights_hash() == before
    made.learn(candles[10])
    assert made.weights_hash() != before


def test_the_loss_of_a_step_is_that_of_what_was_published_for_its_candle() -> None:
    made = learner()
    records = live(made, stream(60))
    for (published, _), (_, learned) in pairwise(records):
        step = learned.step
        assert published.open_time == step.open_time
        given = {"down": published.p_down, "flat": published.p_flat, "up": published.p_up}[step.label or ""]
        assert step.loss == pytest.approx(-np.log(given), rel=1e-9)
        assert step.correct == (published.direction == step.label)
        assert sum((published.p_down, published.p_flat, published.p_up)) == pytest.approx(1, abs=1e-9)
        assert published.close_low <= published.close <= published.close_high


def test_no_prediction_depends_on_a_later_candle() -> None:
    candles = stream(80)
    changed = candles[:60] + [replace(c, high=c.high + 5, close=c.high + 4) for c in candles[60:]]
    before, after = numbers(live(learner(), candles)), numbers(live(learner(), changed))
    assert before[:60] == after[:60]
    assert before[60] != after[60]


def test_the_step_of_a_prediction_counts_the_training_steps_in_its_weights() -> None:
    records = live(learner(), stream(5))
    assert [prediction.step for prediction, _ in records] == [0, 0, 1, 2, 3]
    assert [learned.step.step for _, learned in records] == [0, 1, 2, 3, 4]


def test_the_first_candle_is_warm_up_and_one_after_a_gap_is_not_scored() -> None:
    made = learner()
    records = live(made, stream(10) + stream(5, seed=1, start=START + 60_000))
    skipped = [learned.step.skipped for _, learned in records]
    assert skipped == ["warmup", *[None] * 9, "gap", *[None] * 4]
    after_gap = records[10][1].step
    assert (after_gap.loss, after_gap.correct, after_gap.grad_norm, after_gap.label) == (None, None, None, None)
    assert made.describe()["skips"] == {"warmup": 1, "gap": 1}
    assert made.score(None, False)["candles"] == 13


def test_a_trend_comes_due_a_horizon_later_and_never_across_a_gap() -> None:
    horizon, candles = 10, stream(40, seed=1)
    assert candles[horizon - 1].close != candles[0].close  # a trend due one candle early would show
    records = live(learner(), candles + stream(8, seed=1, start=START + 100_000))
    due = {number: learned.trend for number, (_, learned) in enumerate(records) if learned.trend}
    assert set(due) <= set(range(horizon, 40))
    for number in range(horizon, 40):
        made_at = number - horizon  # the trend was predicted when this candle had closed
        move = candles[number].close - candles[made_at].close
        if move == 0:
            assert number not in due
            continue
        published = records[made_at][0]
        assert due[number].open_time == published.open_time == candles[made_at + 1].open_time
        assert due[number].correct == ((published.trend.p_up >= 0.5) == (move > 0))


def test_same_seed_and_candles_give_the_same_bits_twice() -> None:
    one, other = learner(seed=3), learner(seed=3)
    candles = stream(80)
    assert numbers(live(one, candles)) == numbers(live(other, candles))
    assert one.weights_hash() == other.weights_hash()
    changed = learner(seed=4)
    live(changed, candles)
    assert changed.weights_hash() != one.weights_hash()


@cache
def lived() -> tuple[list[Candle], list[Any], str, dict[str, Any]]:
    """One life that is never interrupted, over a gap: its candles, numbers, weights and score."""
    made, candles = learner(), stream(30) + stream(12, seed=1, start=START + 100_000)
    return candles, numbers(live(made, candles)), made.weights_hash(), made.score(None, False)


@pytest.mark.parametrize("at", [0, 1, 2, 9, 11, 30, 31, 38])
def test_saving_and_loading_at_any_candle_changes_no_bit(at: int) -> None:
    candles, expected, weights, score = lived()
    first, second = learner(), learner()
    assert numbers(live(first, candles[:at])) == expected[:at]
    second.load_state_dict(load_state(dump_state(first.state_dict())))
    assert second.weights_hash() == first.weights_hash()
    assert (second.step, second.last_open_time) == (first.step, first.last_open_time)
    assert numbers(live(second, candles[at:])) == expected[at:]
    assert second.weights_hash() == weights
    assert second.score(None, False) == score


def test_saving_between_predict_and_learn_changes_no_bit_either() -> None:
    candles = stream(40)
    whole, first, second = learner(), learner(), learner()
    expected = numbers(live(whole, candles))
    live(first, candles[:30])
    first.predict(candles[30], 0)
    second.load_state_dict(load_state(dump_state(first.state_dict())))
    assert asdict(second.learn(candles[30])) == expected[30][1]
    assert numbers(live(second, candles[31:])) == expected[31:]


def test_taking_a_state_changes_nothing_and_shares_nothing() -> None:
    made, alone = learner(), learner()
    candles = stream(60)
    live(made, candles[:40])
    live(alone, candles[:40])
    state = made.state_dict()
    kept = dump_state(state)
    assert numbers(live(made, candles[40:])) == numbers(live(alone, candles[40:]))
    assert dump_state(state) == kept


@pytest.mark.parametrize("change", [{"seed": 1}, {"tick": 0.5}, {"model": "base"}, {"window": 9}])
def test_a_state_of_another_configuration_is_refused_by_name(change: dict[str, Any]) -> None:
    with pytest.raises(IncompatibleState, match=next(iter(change))):
        learner(**change).load_state_dict(learner().state_dict())


def test_a_state_without_some_part_is_refused_and_not_a_bug() -> None:
    made = learner()
    live(made, stream(12))
    for name in ("replay", "stepper", "panel", "window", "due"):
        state = made.state_dict()
        del state[name]
        with pytest.raises(IncompatibleState, match="other parts"):
            learner().load_state_dict(state)
    state = made.state_dict()
    state["stepper"]["network"].popitem()
    with pytest.raises(IncompatibleState, match="other parts"):
        learner().load_state_dict(state)


def test_the_weights_hash_sees_every_value_that_learns() -> None:
    made = learner()
    live(made, stream(20))
    before = made.weights_hash()
    for array in (
        made.panel.experts["linear"].squares,  # type: ignore[attr-defined]
        made.panel.experts["markov"].counts,  # type: ignore[attr-defined]
        made.panel.mixture.weights,
    ):
        array.flat[-1] += 1e-9
        assert made.weights_hash() != before
        before = made.weights_hash()
    with torch.no_grad():
        next(made.network.parameters()).view(-1)[0] += 1e-6
    assert made.weights_hash() != before


def test_mirrored_candles_give_mirrored_probabilities_exactly() -> None:
    candles = stream(100)
    made = learner()
    live(made, candles)
    torch.nn.init.ones_(made.network.trust.weight)  # let the branch speak
    for count in range(2, 100, 11):
        said = made.stepper.opinions(*_end(made, candles[:count]))[0].network
        mirror = made.stepper.opinions(*_end(made, mirrored(candles[:count])))[0].network
        assert (said.flat, said.spread) == (mirror.flat, mirror.spread)
        assert (said.side, said.move, said.trend) == (-mirror.side, -mirror.move, -mirror.trend)
        assert said.directions.tolist() == mirror.directions[::-1].tolist()


def _end(made: Learner, candles: list[Candle]) -> Any:
    known = Known.after(candles, made.config)
    return [inputs(known.features)], known.tokens[None]


def test_a_mirrored_life_learns_the_mirrored_network_exactly() -> None:
    candles = stream(80)
    one, other = learner(), learner()
    live(one, candles)
    live(other, mirrored(candles))
    mine, flipped = one.network.state_dict(), other.network.state_dict()
    assert all(torch.equal(mine[name], flipped[name]) for name in mine)


def test_paused_it_scores_and_does_not_learn() -> None:
    made = learner()
    candles = stream(40)
    live(made, candles[:20])
    made.pause()
    before = made.weights_hash()
    records = live(made, candles[20:30])
    assert made.weights_hash() == before
    assert {learned.step.skipped for _, learned in records} == {"paused"}
    assert all(learned.step.loss is not None for _, learned in records)
    assert made.score(None, False)["candles"] == 29
    made.resume()
    assert live(made, candles[30:31])[0][1].step.skipped is None


def test_failures_3_nonfinite_steps_are_skipped_and_several_in_a_row_roll_back() -> None:
    made = learner()
    candles = stream(40)
    live(made, candles[:20])
    before, steps = made.weights_hash(), made.step
    hook = made.network.branch.register_forward_hook(
        lambda _, __, said: tuple(part * float("nan") for part in said) if torch.is_grad_enabled() else said
    )
    bad = live(made, candles[20 : 20 + PATIENCE])
    assert {learned.step.skipped for _, learned in bad} == {"nonfinite"}
    assert {learned.step.grad_norm for _, learned in bad} == {None}
    assert made.step == steps
    assert [event.kind for _, learned in bad for event in learned.events] == ["rollback"]
    assert bad[-1][1].events[0].detail["to_step"] == 0  # the last good copy is of the start
    hook.remove()
    assert live(made, candles[30:32])[1][1].step.skipped is None
    assert made.weights_hash() != before
    assert made.describe()["skips"]["nonfinite"] == PATIENCE


def struck(made: Learner, candles: list[Candle]) -> Iterator[tuple[Prediction, Learned]]:
    """Live, with every forward of a training step NaN for PATIENCE candles from the 34th on."""
    first = START + 33_000

    def poison(_: object, __: object, said: Any) -> Any:
        open_time = made.window.last.open_time if made.window.last else 0
        bad = torch.is_grad_enabled() and first <= open_time < first + PATIENCE * 1000
        return tuple(part * float("nan") for part in said) if bad else said

    with made.network.branch.register_forward_hook(poison):
        for candle in candles:
            yield made.predict(candle, 0), made.learn(candle)


def test_saving_and_loading_before_amid_and_after_a_bad_streak_changes_no_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("models.stepper.SNAPSHOT_EVERY", 10)
    whole, candles, states, records = learner(), stream(41), [], []
    for record in struck(whole, candles):
        records.append(record)
        states.append(dump_state(whole.state_dict()))
    assert [event.detail["to_step"] for _, learned in records for event in learned.events] == [30]
    for at in range(26, 40):  # before the copy at step 30, after it, amid the streak, after the rollback
        resumed = learner()
        resumed.load_state_dict(load_state(states[at - 1]))
        assert numbers(list(struck(resumed, candles[at:]))) == numbers(records[at:])
        assert resumed.weights_hash() == whole.weights_hash()


def tensors(made: Learner) -> Iterator[torch.Tensor]:
    """Go through every weight, covariance and optimizer value in a fixed order."""
    yield from made.network.state_dict().values()
    for state in made.stepper.optimizer.state.values():
        yield from (value for value in state.values() if isinstance(value, torch.Tensor))


def test_one_nonfinite_step_leaves_every_weight_and_optimizer_value() -> None:
    made = learner()
    candles = stream(30)
    live(made, candles[:20])
    weights = [tensor.clone() for tensor in tensors(made)]
    hook = made.network.branch.register_forward_hook(
        lambda _, __, said: tuple(part * float("inf") for part in said) if torch.is_grad_enabled() else said
    )
    assert live(made, candles[20:21])[0][1].step.skipped == "nonfinite"
    hook.remove()
    assert all(torch.equal(a, b) for a, b in zip(weights, tensors(made), strict=True))


def test_failures_3_an_absurd_but_valid_price_is_survived() -> None:
    made = learner()
    candles = stream(60)
    live(made, candles[:20])
    mad = Candle(MARKET, candles[20].open_time, 1e38, 1e38, 1e38, 1e38, 1e38)
    for prediction, learned in live(made, [mad, *candles[21:]]):
        json.dumps([asdict(prediction), asdict(learned)], allow_nan=False)
        assert learned.step.skipped is None


def test_a_preview_changes_nothing_at_all() -> None:
    made, alone = learner(), learner()
    candles = stream(60)
    live(made, candles[:40])
    live(alone, candles[:40])
    before = dump_state(made.state_dict())
    made.preview(stream(100, seed=9), 0)
    assert dump_state(made.state_dict()) == before
    assert numbers(live(made, candles[40:])) == numbers(live(alone, candles[40:]))


def test_failures_11_what_was_said_in_inference_mode_can_be_trained_on() -> None:
    made, alone = learner(), learner()
    candles = stream(30)
    for candle in candles:
        with torch.inference_mode():
            said = made.predict(candle, 0)
            made.preview(candles[:8], 0)
        assert said == alone.predict(candle, 0)
        assert made.learn(candle).step == alone.learn(candle).step
    assert made.weights_hash() == alone.weights_hash()


def test_a_preview_of_the_same_candles_says_what_was_published_live() -> None:
    made = learner()
    candles = stream(60)
    live(made, candles[:-1])
    preview = made.preview(candles, 77)
    assert preview == made.predict(candles[-1], 77)


def test_many_previews_in_one_forward_say_the_same_as_one_by_one() -> None:
    made = learner()
    live(made, stream(60))
    requests = [stream(count, seed=count) for count in (2, 5, 30)]
    for single, batched in zip([made.preview(r, 0) for r in requests], made.preview_many(requests, 0), strict=True):
        assert asdict(single) | {"weights": None, "trend": None} == {
            key: pytest.approx(value) if isinstance(value, float) else value
            for key, value in (asdict(batched) | {"weights": None, "trend": None}).items()
        }


def test_a_preview_needs_two_consecutive_candles() -> None:
    made = learner()
    with pytest.raises(ValueError, match="at least 2"):
        made.preview(stream(1), 0)
    with pytest.raises(ValueError, match="does not follow"):
        made.preview([stream(3)[0], stream(3)[2]], 0)


def test_candles_out_of_order_are_refused() -> None:
    made = learner()
    candles = stream(5)
    live(made, candles[:3])
    with pytest.raises(ValueError, match="not later"):
        made.predict(candles[1], 0)
    with pytest.raises(ValueError, match="not predicted"):
        made.learn(candles[4])
    made.predict(candles[3], 0)
    with pytest.raises(ValueError, match="not learned"):
        made.predict(candles[4], 0)


def test_fillers_count_as_live_or_backfill_as_what_they_stand_between() -> None:
    made = learner()
    candles = stream(60)
    past = [replace(c, source="backfill") if c.source == "live" else c for c in candles[:40]]
    live(made, past)
    assert made.score(None, live=True)["candles"] == 0
    live(made, candles[40:])
    assert made.score(None, live=True)["candles"] >= 15
    assert made.score(None, live=False)["candles"] == 59


def test_everything_it_tells_is_strict_json() -> None:
    made = learner(simulated=True)
    live(made, stream(30))
    for told in (made.score(None, False), made.score(300, True), made.short_score(), made.describe()):
        json.dumps(told, allow_nan=False)
    assert made.describe()["parameters"] > 1_000
    assert made.predict(stream(31)[-1], 0).simulated


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_lower_precision_learns_and_resumes_on_the_same_path(precision: str) -> None:
    candles = stream(60)
    whole, first, second = (learner(precision=precision) for _ in range(3))
    expected = numbers(live(whole, candles))
    live(first, candles[:30])
    second.load_state_dict(load_state(dump_state(first.state_dict())))
    assert numbers(live(second, candles[30:])) == expected[30:]
    assert {learned["step"]["skipped"] for _, learned in expected[1:]} == {None}
