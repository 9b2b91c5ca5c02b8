import numpy as np

from models.drift import Drift


def alarms(excess: np.ndarray) -> list[int]:
    drift = Drift()
    return [number for number, value in enumerate(excess.tolist()) if drift.add(value)]


def noise(count: int, scale: float, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(-0.03, scale, count)


def test_a_model_that_loses_its_edge_is_found_within_minutes() -> None:
    excess = np.concatenate((noise(6_000, 0.25), noise(2_000, 0.25, seed=1) + 0.15))
    found = alarms(excess)
    assert found
    assert 6_000 <= found[0] < 7_000


def test_louder_volatility_alone_is_no_drift() -> None:
    excess = np.concatenate([noise(5_000, 0.1 + 0.3 * (part % 2), seed=part) for part in range(8)])
    assert alarms(excess) == []


def test_a_model_that_gets_better_is_no_drift() -> None:
    assert alarms(np.concatenate((noise(6_000, 0.25), noise(6_000, 0.25, seed=1) - 0.2))) == []


def test_after_an_alarm_it_starts_anew_instead_of_ringing_on() -> None:
    excess = np.concatenate((noise(6_000, 0.25), noise(12_000, 0.25, seed=1) + 0.2))
    assert len(alarms(excess)) == 1


def test_a_restored_detector_rings_at_the_same_candle() -> None:
    excess = np.concatenate((noise(5_000, 0.25), noise(2_000, 0.25, seed=1) + 0.2))
    drift, again = Drift(), Drift()
    for value in excess[:5_200]:
        drift.add(float(value))
    again.load_state_dict(drift.state_dict())
    assert [drift.add(float(value)) for value in excess[5_200:]] == [
        again.add(float(value)) for value in excess[5_200:]
    ]
