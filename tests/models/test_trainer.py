import copy
import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import torch
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_post_hook

from models.config import Precision
from models.trainer import StalledStep, Trainer

INPUTS = torch.linspace(-1, 1, 24).view(8, 3)
TARGETS = INPUTS.sum(dim=1, keepdim=True)


def model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1))


def trainer(clip_norm: float = 1.0, precision: Precision = "fp32", rate: float = 0.1) -> Trainer:
    network = model()
    optimizer = torch.optim.SGD(network.parameters(), lr=rate)
    return Trainer(network, optimizer, clip_norm, precision)


def loss_of(made: Trainer, scale: float = 1.0) -> Callable[[], Tensor]:
    return lambda: scale * (made.network(INPUTS) - TARGETS).square().mean()


def weights(made: Trainer) -> list[Tensor]:
    return [parameter.detach().clone() for parameter in made.network.parameters()]


def fingerprint(made: Trainer) -> str:
    digest = hashlib.sha256()
    for value in [*made.network.state_dict().values(), *_values(made.optimizer.state_dict())]:
        digest.update(value.numpy().tobytes() if isinstance(value, Tensor) else repr(value).encode())
    return digest.hexdigest()


def _values(nested: object) -> Iterator[object]:
    if isinstance(nested, dict):
        for value in nested.values():
            yield from _values(value)
    else:
        yield nested


@contextmanager
def counted(made: Trainer) -> Iterator[dict[str, int]]:
    """Count forwards of the network, backwards that reach its first weight, and steps of any optimizer."""
    counts = {"forward": 0, "backward": 0, "step": 0}

    def count(name: str) -> Callable[..., None]:
        return lambda *_: counts.update({name: counts[name] + 1})

    first = next(made.network.parameters())
    handles = [
        made.network.register_forward_hook(count("forward")),
        first.register_post_accumulate_grad_hook(count("backward")),
        register_optimizer_step_post_hook(count("step")),
    ]
    yield counts
    for handle in handles:
        handle.remove()


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
@pytest.mark.parametrize("clip_norm", [1e-3, 1e3])
def test_a_step_is_one_forward_one_backward_one_optimizer_step(precision: Precision, clip_norm: float) -> None:
    made = trainer(clip_norm, precision)
    with counted(made) as counts:
        taken = made.train_step(loss_of(made))
    assert taken.clipped == (clip_norm == 1e-3)
    assert counts == {"forward": 1, "backward": 1, "step": 1}


def test_a_clipped_step_equals_clipping_by_hand() -> None:
    made, hand = trainer(clip_norm=0.01), model()
    taken = made.train_step(loss_of(made))
    (hand(INPUTS) - TARGETS).square().mean().backward()
    norm = torch.stack([p.grad.norm() for p in hand.parameters() if p.grad is not None]).norm().item()
    assert taken.grad_norm == pytest.approx(norm)
    assert taken.grad_norm_clipped == 0.01
    for parameter, stepped in zip(hand.parameters(), made.network.parameters(), strict=True):
        assert parameter.grad is not None
        torch.testing.assert_close(parameter.data - 0.1 * parameter.grad * 0.01 / norm, stepped.data)


def test_a_clipped_step_equals_the_two_backward_result_of_the_ancestor() -> None:
    """One backward to measure the norm, a second one, of the scaled loss, to step: the same for twice the work."""
    made, ancestor = trainer(clip_norm=0.01), model()
    optimizer = torch.optim.SGD(ancestor.parameters(), lr=0.1)
    loss = (ancestor(INPUTS) - TARGETS).square().mean()
    loss.backward(retain_graph=True)
    norm = torch.stack([p.grad.norm() for p in ancestor.parameters() if p.grad is not None]).norm()
    optimizer.zero_grad()
    (loss * 0.01 / norm).backward()
    optimizer.step()
    made.train_step(loss_of(made))
    for one, other in zip(ancestor.parameters(), made.network.parameters(), strict=True):
        torch.testing.assert_close(one.data, other.data)


def test_below_the_threshold_clipping_changes_nothing() -> None:
    clipping, free = trainer(clip_norm=1e3), trainer(clip_norm=1e9)
    for made in (clipping, free):
        taken = made.train_step(loss_of(made))
        assert taken.grad_norm == taken.grad_norm_clipped
        assert not taken.clipped
    assert fingerprint(clipping) == fingerprint(free)


def test_the_effective_learning_rate_is_not_doubled() -> None:
    made, plain = trainer(clip_norm=1e3), model()
    (plain(INPUTS) - TARGETS).square().mean().backward()
    made.train_step(loss_of(made))
    for parameter, stepped in zip(plain.parameters(), made.network.parameters(), strict=True):
        assert parameter.grad is not None
        torch.testing.assert_close(parameter.data - stepped.data, 0.1 * parameter.grad)


def test_an_exploding_loss_moves_the_weights_no_further_than_rate_times_clip_norm() -> None:
    made = trainer(clip_norm=0.5)
    before = weights(made)
    taken = made.train_step(loss_of(made, scale=1e12))
    moved = torch.cat([(a - b).flatten() for a, b in zip(before, weights(made), strict=True)]).norm().item()
    assert taken.clipped
    assert moved == pytest.approx(0.1 * 0.5, rel=1e-4)


def test_many_steps_stay_consistent_with_a_loop_by_hand() -> None:
    made, hand = trainer(clip_norm=0.3), model()
    optimizer = torch.optim.SGD(hand.parameters(), lr=0.1)
    for _ in range(200):
        taken = made.train_step(loss_of(made))
        optimizer.zero_grad()
        loss = (hand(INPUTS) - TARGETS).square().mean()
        loss.backward()
        nn.utils.clip_grad_norm_(hand.parameters(), 0.3)
        optimizer.step()
        assert taken.loss == loss.item()
    assert all(torch.equal(a, b) for a, b in zip(weights(made), hand.parameters(), strict=True))
    assert taken.loss is not None
    assert taken.loss < 0.01


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), 1e30])
@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.AdamW])
def test_failures_3_and_5_a_nonfinite_loss_or_gradient_skips_the_step_and_touches_nothing(
    bad: float, optimizer: type[torch.optim.Optimizer]
) -> None:
    network = model()
    made = Trainer(network, optimizer(network.parameters(), lr=0.1), 1.0)  # type: ignore[call-arg]
    made.train_step(loss_of(made))
    before = fingerprint(made)
    taken = made.train_step(lambda: (made.network(INPUTS) * bad).square().mean())
    assert taken.skipped == "nonfinite"
    assert (taken.loss, taken.grad_norm, taken.grad_norm_clipped, taken.clipped) == (None, None, None, False)
    assert fingerprint(made) == before
    assert made.train_step(loss_of(made)).skipped is None
    assert fingerprint(made) != before


def test_a_finite_loss_with_a_nonfinite_gradient_is_skipped_too() -> None:
    made = trainer()
    before = fingerprint(made)
    taken = made.train_step(lambda: made.network(INPUTS).sub(made.network(INPUTS).detach()).square().sum().sqrt())
    assert taken.skipped == "nonfinite"
    assert fingerprint(made) == before


def test_a_loss_that_is_cut_off_from_the_weights_is_an_error_and_no_step() -> None:
    made = trainer()
    before = fingerprint(made)
    with pytest.raises(StalledStep):
        made.train_step(lambda: 0.0 * made.network(INPUTS).sum())
    assert fingerprint(made) == before


def test_failures_1_predictions_between_a_forward_and_its_backward_cannot_touch_the_weights() -> None:
    made, alone = trainer(), trainer()

    def interrupted() -> Tensor:
        loss = loss_of(made)()
        with torch.no_grad(), made.autocast():
            made.network(INPUTS * 2)
        return loss

    for _ in range(5):
        made.train_step(interrupted)
        alone.train_step(loss_of(alone))
    assert fingerprint(made) == fingerprint(alone)


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_failures_7_a_prediction_in_the_autocast_of_a_step_does_not_stop_learning(precision: Precision) -> None:
    made = trainer(precision=precision)

    def predicting() -> Tensor:
        with torch.no_grad(), made.autocast():
            made.network(INPUTS)
        return loss_of(made)()

    for _ in range(20):
        before = weights(made)
        taken = made.train_step(predicting)
        assert taken.skipped is None
        assert not any(torch.equal(a, b) for a, b in zip(before, weights(made), strict=True))


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_lower_precision_takes_the_same_path_to_nearly_the_same_weights(precision: Precision) -> None:
    lower, full = trainer(precision=precision), trainer()
    for _ in range(30):
        one, other = lower.train_step(loss_of(lower)), full.train_step(loss_of(full))
        assert one.grad_norm == pytest.approx(other.grad_norm, rel=0.1, abs=0.03)
        assert one.loss == pytest.approx(other.loss, rel=0.1, abs=0.01)
    for one_weight, other_weight in zip(weights(lower), weights(full), strict=True):
        torch.testing.assert_close(one_weight, other_weight, atol=0.02, rtol=0.05)


def test_fp16_gradients_are_unscaled_before_they_are_clipped() -> None:
    made = trainer(clip_norm=0.01, precision="fp16")
    before = weights(made)
    taken = made.train_step(loss_of(made))
    moved = torch.cat([(a - b).flatten() for a, b in zip(before, weights(made), strict=True)]).norm().item()
    assert taken.clipped
    assert moved == pytest.approx(0.1 * 0.01, rel=1e-3)


def test_an_fp16_overflow_is_skipped_and_lowers_the_scale() -> None:
    made = trainer(precision="fp16")
    scale = made.scaler.get_scale()
    before = fingerprint(made)
    assert made.train_step(lambda: (made.network(INPUTS) * 1e30).square().mean()).skipped == "nonfinite"
    assert fingerprint(made) == before
    assert made.scaler.get_scale() < scale


def test_no_gradient_is_kept_between_steps() -> None:
    made = trainer()
    made.train_step(loss_of(made))
    assert all(parameter.grad is None for parameter in made.network.parameters())


def test_failures_9_only_plain_numbers_leave_the_step() -> None:
    made = trainer()
    taken = made.train_step(loss_of(made))
    assert {type(value) for value in (taken.loss, taken.grad_norm, taken.grad_norm_clipped)} == {float}
    assert copy.deepcopy(taken) == taken
