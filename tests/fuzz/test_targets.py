"""The fuzz targets run: on their seeds, and on what was once found with them."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fuzz.__main__ import NAMES
from tests.fuzz.targets import TARGETS, client_frame

SEEDS = [(name, seed) for name, (_, seeds) in TARGETS.items() for seed in seeds]


def test_every_target_can_be_named() -> None:
    assert set(NAMES) == set(TARGETS)


@pytest.mark.parametrize(("name", "seed"), SEEDS, ids=[f"{name}-{n}" for n, (name, _) in enumerate(SEEDS)])
def test_a_target_takes_its_seeds_also_cut_short_or_with_a_byte_changed(name: str, seed: bytes) -> None:
    target, _ = TARGETS[name]
    for end in range(0, len(seed) + 1, max(1, len(seed) // 20)):
        target(seed[:end])
        target(seed[:end] + b"\xff" + seed[end + 1 :])


@settings(max_examples=200, deadline=None, derandomize=True)
@given(st.binary(max_size=200))
def test_a_client_frame_may_be_anything(data: bytes) -> None:
    client_frame(data)
