import numpy as np
import pytest

from models.experts import BASELINES, INPUTS, Context, Expert, Follow, Frequencies, baselines
from models.label import DOWN, FLAT, UP


def context(*recent: int) -> Context:
    return Context((*recent, *(FLAT,) * (3 - len(recent))), np.linspace(-1, 1, INPUTS))  # type: ignore[arg-type]


@pytest.fixture(params=BASELINES)
def expert(request: pytest.FixtureRequest) -> Expert:
    return baselines()[request.param]


def test_every_expert_starts_undecided(expert: Expert) -> None:
    assert expert.predict(context(UP)) == pytest.approx([1 / 3] * 3)


def test_every_expert_learns_what_always_follows(expert: Expert) -> None:
    for _ in range(200):
        expert.learn(context(UP, DOWN, UP), UP if not getattr(expert, "reverse", False) else DOWN)
    given = expert.predict(context(UP, DOWN, UP))
    assert given.sum() == pytest.approx(1)
    assert given.max() > 0.9


def test_predicting_changes_no_expert(expert: Expert) -> None:
    expert.learn(context(UP), DOWN)
    first = expert.predict(context(UP))
    expert.predict(context(DOWN))
    assert np.array_equal(first, expert.predict(context(UP)))


def test_every_expert_goes_on_exactly_from_its_state() -> None:
    for name, expert in baselines().items():
        for label in (UP, FLAT, DOWN, UP):
            expert.learn(context(label), label)
        again = baselines()[name]
        again.load_state_dict(expert.state_dict())
        expert.learn(context(UP), DOWN)
        again.learn(context(UP), DOWN)
        assert np.array_equal(expert.predict(context(UP)), again.predict(context(UP)))


def test_majority_and_markov_count_by_laplaces_rule() -> None:
    majority, markov = Frequencies(0), Frequencies(3)
    for label in (UP, UP, FLAT):
        majority.learn(context(DOWN), label)
        markov.learn(context(DOWN), label)
    assert majority.predict(context(UP)) == pytest.approx([1 / 6, 2 / 6, 3 / 6])
    assert markov.predict(context(DOWN)) == pytest.approx([1 / 6, 2 / 6, 3 / 6])
    assert markov.predict(context(UP)) == pytest.approx([1 / 3] * 3)


def test_repeat_says_the_last_direction_and_reverse_its_opposite() -> None:
    assert [Follow(reverse=False).choice(context(label)) for label in (DOWN, FLAT, UP)] == [DOWN, FLAT, UP]
    assert [Follow(reverse=True).choice(context(label)) for label in (DOWN, FLAT, UP)] == [UP, FLAT, DOWN]
