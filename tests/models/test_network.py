import pytest
import torch
from torch import Tensor

from models.network import Network, NetworkConfig, causal_mask

WINDOW, BATCH, HEADS = 7, 3, 2


def network(seed: int = 0, **changes: object) -> Network:
    sizes: dict[str, object] = {"width": 16, "layers": 2, "heads": HEADS, "feedforward": 12, "window": WINDOW}
    config = NetworkConfig(even_inputs=5, odd_inputs=4, even_outputs=1, odd_outputs=2, **(sizes | changes))  # type: ignore[arg-type]
    torch.manual_seed(seed)
    made = Network(config)
    for head in (made.even_head, made.odd_head):
        torch.nn.init.normal_(head.weight)  # a fresh one answers zeros
    return made


def tokens(length: int = WINDOW) -> tuple[Tensor, Tensor]:
    torch.manual_seed(1)
    return torch.randn(BATCH, length, 5), torch.randn(BATCH, length, 4)


MASKS = {
    "none": None,
    "causal": torch.ones(WINDOW, WINDOW, dtype=torch.bool).tril(),
    "padding": torch.arange(WINDOW).expand(BATCH, 1, 1, WINDOW) >= torch.tensor([0, 2, 5]).view(-1, 1, 1, 1),
    "per head": torch.rand(1, HEADS, WINDOW, WINDOW, generator=torch.manual_seed(3)) > 0.4,
    "float": torch.randn(WINDOW, WINDOW, generator=torch.manual_seed(4)),
    "float, one query row": torch.randn(BATCH, 1, 1, WINDOW, generator=torch.manual_seed(5)),
    "float, whole": torch.randn(BATCH, HEADS, WINDOW, WINDOW, generator=torch.manual_seed(6)),
    "float, scalar": torch.zeros(()),
}


def gradients(made: Network, mask: Tensor | None) -> list[Tensor]:
    made.zero_grad()
    torch.manual_seed(7)  # of the dropout
    even, odd = made(*tokens(), mask)
    (even.square().sum() + odd.square().sum() + odd.sum()).backward()
    return [parameter.grad.clone() for parameter in made.parameters() if parameter.grad is not None]


def test_a_fresh_network_says_zero() -> None:
    config = NetworkConfig(even_inputs=5, odd_inputs=4, even_outputs=1, odd_outputs=2, window=WINDOW)
    even, odd = Network(config)(*tokens())
    assert not even.any()
    assert not odd.any()


def test_mirrored_odd_tokens_flip_the_odd_outputs_and_leave_the_even_ones_exactly() -> None:
    even, odd = tokens()
    made = network()
    even_out, odd_out = made(even, odd)
    even_mirrored, odd_mirrored = made(even, -odd)
    assert torch.equal(even_out, even_mirrored)
    assert torch.equal(odd_out, -odd_mirrored)
    assert odd_out.abs().min() > 0


def test_mirrored_training_leaves_the_same_gradients_exactly() -> None:
    even, odd = tokens()
    made = network()
    kept = []
    for sign in (1.0, -1.0):
        made.zero_grad()
        even_out, odd_out = made(even, sign * odd)
        (even_out.sum() + (odd_out * sign).square().sum() + (odd_out * sign).sum()).backward()
        kept.append([parameter.grad.clone() for parameter in made.parameters() if parameter.grad is not None])
    assert all(torch.equal(one, other) for one, other in zip(*kept, strict=True))


def test_no_position_sees_a_later_one() -> None:
    even, odd = tokens()
    made = network()
    before = made.encode(even, odd)
    even[:, 4:], odd[:, 4:] = 9.0, 9.0
    after = made.encode(even, odd)
    for one, other in zip(before, after, strict=True):
        assert torch.equal(one[:, :4], other[:, :4])
        assert not torch.equal(one[:, 4:], other[:, 4:])


@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
def test_reading_the_last_position_only_gives_the_same_numbers(mask: Tensor | None) -> None:
    made = network()
    whole = made.encode(*tokens(), mask)
    last = made.encode(*tokens(), mask, last_only=True)
    for one, other in zip(whole, last, strict=True):
        torch.testing.assert_close(one[:, -1:], other)


@pytest.mark.parametrize("dropout", [0.0, 0.3])
@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
def test_failures_13_gradient_checkpointing_changes_no_gradient(mask: Tensor | None, dropout: float) -> None:
    plain = gradients(network(dropout=dropout), mask)
    checkpointed = gradients(network(dropout=dropout, gradient_checkpointing=True), mask)
    assert len(plain) > 20
    assert all(torch.equal(one, other) for one, other in zip(plain, checkpointed, strict=True))


def test_checkpointing_is_the_kind_that_serves_autograd_grad_too() -> None:
    """The reentrant kind refuses it, and loses gradients where no input wants one."""
    made = network(gradient_checkpointing=True)
    even, odd = made(*tokens())
    wanted = torch.autograd.grad(even.square().sum() + odd.sum(), list(made.blocks.parameters()))
    assert all(gradient.isfinite().all() for gradient in wanted)


def test_a_boolean_mask_hides_what_it_marks_false() -> None:
    even, odd = tokens()
    hidden = torch.ones(WINDOW, dtype=torch.bool)
    hidden[2] = False
    made = network(layers=1)
    before = made(even, odd, hidden)
    even[:, 2], odd[:, 2] = 9.0, 9.0
    assert torch.equal(before[0], made(even, odd, hidden)[0])
    assert not torch.equal(before[0], made(even, odd)[0])


def test_a_float_mask_is_added_to_the_scores_under_causality() -> None:
    mask = causal_mask(3, torch.full((3,), 0.5), torch.device("cpu"))
    assert mask.tolist() == [[0.5, -torch.inf, -torch.inf], [0.5, 0.5, -torch.inf], [0.5, 0.5, 0.5]]


def test_a_shorter_window_stands_at_the_end() -> None:
    made = network()
    with torch.no_grad():
        made.position[: WINDOW - 3] = torch.nan
    even, odd = made(*tokens(3))
    assert even.isfinite().all()
    assert odd.isfinite().all()


def test_a_width_that_does_not_split_is_refused() -> None:
    with pytest.raises(ValueError, match="does not split"):
        network(width=18)
