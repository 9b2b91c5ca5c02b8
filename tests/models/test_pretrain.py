import pytest
import torch

from models.config import LearnerConfig
from models.learner import Learner
from models.pretrain import Batch, Epoch, Passed, PretrainConfig, pretrain
from models.stepper import Stepper
from models.trainer import TrainStep
from tests.models.streams import TICK, stream

CONFIG = PretrainConfig(epochs=6, batch_size=32, holdout=0.25, patience=2)


def learner() -> Learner:
    return Learner(LearnerConfig("m", tick=TICK, window=6, trend_horizon=8, learning_rate=0.003))


def test_it_passes_once_then_trains_in_epochs_and_tells_all_progress() -> None:
    told: list[object] = []
    epochs = pretrain(learner(), stream(400), CONFIG, told.append)
    assert [type(each) for each in told if not isinstance(each, Batch)] == [Passed] * 400 + [Epoch] * len(epochs)
    assert told[399] == Passed(400, 400)
    batches = [each for each in told if isinstance(each, Batch) and each.epoch == 1]
    assert [each.number for each in batches] == list(range(1, batches[0].batches + 1))
    assert all(each.loss is not None for each in batches)
    assert [each for each in told if isinstance(each, Epoch)] == epochs
    assert epochs[-1].loss < epochs[0].loss
    assert 0 < epochs[0].candle_accuracy < 1
    assert epochs[0].trend_accuracy is not None


def test_it_stops_early_and_goes_on_from_the_best_epochs_weights() -> None:
    best: dict[str, torch.Tensor] = {}
    made = learner()

    def keep(told: object) -> None:
        if isinstance(told, Epoch) and told.best:
            best.update({name: value.clone() for name, value in made.network.branch.state_dict().items()})

    settings = PretrainConfig(epochs=60, batch_size=32, holdout=0.25, patience=2)
    epochs = pretrain(made, stream(400), settings, keep)
    last_best = max(epoch.epoch for epoch in epochs if epoch.best)
    assert len(epochs) == last_best + 2 < 60
    assert epochs[last_best - 1].held_out_loss == min(epoch.held_out_loss for epoch in epochs)
    # Only the hundred small steps over the tail came after.
    for name, value in made.network.branch.state_dict().items():
        assert (value - best[name]).abs().max() < 100 * 2 * 0.003


def test_epochs_that_only_harm_leave_the_branch_as_the_first_pass_left_it(monkeypatch: pytest.MonkeyPatch) -> None:
    hashes = []
    for harm in (0.0, 10.0):

        def train_batch(stepper: Stepper, *_: object, harm: float = harm) -> TrainStep:
            with torch.no_grad():
                stepper.network.branch.even_head.bias.add_(harm)
            return TrainStep(1.0, 1.0, 1.0, clipped=False)

        monkeypatch.setattr(Stepper, "train_batch", train_batch)
        made = learner()
        epochs = pretrain(made, stream(300), CONFIG)
        assert [epoch.best for epoch in epochs] == [False, False]
        hashes.append(made.weights_hash())
    assert hashes[0] == hashes[1]


def test_afterwards_it_goes_on_live_from_the_last_candle() -> None:
    candles = stream(420)
    made = learner()
    pretrain(made, candles[:400], CONFIG)
    assert made.last_open_time == candles[399].open_time
    for candle in candles[400:]:
        made.predict(candle, 0)
        assert made.learn(candle).step.skipped is None


def test_the_same_candles_and_seed_give_the_same_bits() -> None:
    one, other = learner(), learner()
    assert pretrain(one, stream(300), CONFIG) == pretrain(other, stream(300), CONFIG)
    assert one.weights_hash() == other.weights_hash()


def test_too_few_candles_are_refused() -> None:
    with pytest.raises(ValueError, match="too few"):
        pretrain(learner(), stream(60), CONFIG)


@pytest.mark.parametrize("bad", [{"epochs": 0}, {"holdout": 0.0}, {"holdout": 1.0}, {"patience": 0}, {"batch_size": 0}])
def test_settings_out_of_range_are_refused(bad: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="at least 1"):
        PretrainConfig(**bad)  # type: ignore[arg-type]
