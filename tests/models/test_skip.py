import numpy as np
import pytest
import torch

from models.skip import RecursiveGains, RecursiveLinear


def taught(rows: torch.Tensor, values: torch.Tensor, prior: float, noise: float, **settings: float) -> RecursiveLinear:
    layer = RecursiveLinear(torch.full((rows.shape[1],), prior), **settings)
    for row, value in zip(rows, values, strict=True):
        loss = (layer(row) - value) ** 2 / (2 * noise)
        loss.backward()
        layer.curvature = 1 / noise
        layer.newton_step()
    return layer


def problem(count: int = 40, inputs: int = 6) -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    rows = torch.randn(count, inputs, dtype=torch.float64)
    return rows, rows @ torch.arange(1.0, inputs + 1, dtype=torch.float64) + torch.randn(count, dtype=torch.float64)


def test_on_squared_loss_the_newton_steps_give_the_ridge_solution() -> None:
    rows, values = problem()
    layer = taught(rows, values, prior=2.0, noise=0.5)
    exact = torch.linalg.inv(rows.T @ rows / 0.5 + torch.eye(6) / 2.0)
    torch.testing.assert_close(layer.covariance, exact)
    torch.testing.assert_close(layer.weight.detach(), exact @ rows.T @ values / 0.5)


def test_the_variance_is_that_of_the_bayesian_regression() -> None:
    rows, values = problem()
    layer = taught(rows, values, prior=2.0, noise=0.5)
    assert layer.variance(rows[0]).item() == pytest.approx((rows[0] @ layer.covariance @ rows[0]).item())


def test_the_covariance_stays_symmetric_to_the_last_bit_and_positive() -> None:
    rows, values = problem(count=2_000, inputs=33)
    layer = taught(rows / 10, values, prior=50.0, noise=0.5, forgetting=0.9999)
    assert torch.equal(layer.covariance, layer.covariance.T)
    assert np.linalg.eigvalsh(layer.covariance.numpy()).min() > 0


def test_a_halved_gradient_takes_half_the_step() -> None:
    moved = []
    for share in (1.0, 0.5):
        layer = RecursiveLinear(torch.ones(2))
        layer(torch.tensor([1.0, 2.0], dtype=torch.float64)).backward()
        assert layer.weight.grad is not None
        layer.weight.grad *= share
        layer.curvature = 0.25
        layer.newton_step()
        moved.append(layer.weight.detach().clone())
    torch.testing.assert_close(moved[0], 2 * moved[1])
    assert moved[0].abs().min() > 0


def test_without_a_gradient_no_step_is_taken() -> None:
    layer = RecursiveLinear(torch.ones(2))
    layer(torch.ones(2, dtype=torch.float64))
    layer.newton_step()
    assert not layer.weight.detach().any()
    assert torch.equal(layer.covariance, torch.eye(2, dtype=torch.float64))


def test_asking_without_remembering_does_not_disturb_a_waiting_step() -> None:
    layer = RecursiveLinear(torch.ones(2))
    newest = torch.ones(2, dtype=torch.float64)
    layer(newest)
    layer(2 * newest, remember=False)
    assert layer.inputs is newest


def test_gains_learn_as_that_many_layers_of_one_input_and_rest_where_nothing_was_asked() -> None:
    torch.manual_seed(0)
    gains = RecursiveGains(torch.tensor([0.25, 0.5, 2.0]), forgetting=0.99)
    singles = [RecursiveLinear(prior[None], forgetting=0.99) for prior in (torch.tensor([0.25, 0.5, 2.0]))]
    for step in range(30):
        inputs, slopes = torch.randn(3, dtype=torch.float64), torch.randn(3, dtype=torch.float64)
        asked = torch.tensor([True, step % 2 == 0, step % 3 == 0])
        (gains(inputs) * slopes * asked).sum().backward()  # type: ignore[no-untyped-call]
        gains.curvature = 0.3 * asked.double()
        gains.newton_step()
        for single, each, slope, one in zip(singles, inputs, slopes, asked, strict=True):
            if one:
                (single(each[None]) * slope).backward()
                single.curvature = 0.3
                single.newton_step()
    torch.testing.assert_close(gains.weight, torch.cat([single.weight for single in singles]))
    torch.testing.assert_close(gains.precise, torch.cat([single.precise[0] for single in singles]))
    torch.testing.assert_close(gains.growth, torch.stack([single.growth for single in singles]))
