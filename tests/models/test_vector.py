import pytest
import torch
from torch import Tensor, nn

from models.trainer import Trainer
from models.vector import ParameterVector

INPUTS = torch.linspace(-1, 1, 24).view(8, 3)


def model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 1))


def test_the_modules_parameters_are_views_that_follow_the_vector() -> None:
    module = model()
    before = [part.detach().clone() for part in module.parameters()]
    vector = ParameterVector(module)
    assert all(torch.equal(a, b) for a, b in zip(before, module.parameters(), strict=True))
    with torch.no_grad():
        vector.values.mul_(2)
    assert all(torch.equal(2 * a, b) for a, b in zip(before, module.parameters(), strict=True))


def test_loading_a_state_into_the_module_changes_the_vector() -> None:
    module = model()
    vector = ParameterVector(module)
    module.load_state_dict({name: torch.ones_like(value) for name, value in module.state_dict().items()})
    assert torch.equal(vector.values.detach(), torch.ones(26))


def test_gathering_moves_the_gradients_and_takes_a_missing_one_as_zero() -> None:
    module = model()
    vector = ParameterVector(module)
    module[0](INPUTS).sum().backward()
    weight, bias = (part.grad.clone() for part in module[0].parameters() if part.grad is not None)
    vector.gather()
    assert vector.values.grad is not None
    assert torch.equal(vector.values.grad, torch.cat((weight.flatten(), bias, torch.zeros(6))))
    assert all(part.grad is None for part in module.parameters())


def test_clipped_steps_by_the_vector_equal_steps_by_every_parameter() -> None:
    single, joined = model(), model()
    vector = ParameterVector(joined)
    by_part = Trainer(single, torch.optim.AdamW(single.parameters(), lr=0.01), clip_norm=0.1)
    by_vector = Trainer(joined, torch.optim.AdamW([vector.values], lr=0.01), clip_norm=0.1, vector=vector)

    def loss_of(module: nn.Module) -> Tensor:
        loss: Tensor = (module(INPUTS) - INPUTS.sum(dim=1, keepdim=True)).square().mean()
        return loss

    for _ in range(20):
        one, other = by_part.train_step(lambda: loss_of(single)), by_vector.train_step(lambda: loss_of(joined))
    assert one.clipped
    assert one.loss == pytest.approx(other.loss)
    for part, view in zip(single.parameters(), joined.parameters(), strict=True):
        torch.testing.assert_close(part, view)
