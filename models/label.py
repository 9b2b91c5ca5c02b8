"""Direction and trend labels: what a close was against an earlier one, tick-aware."""

from __future__ import annotations

from models.records import DIRECTIONS, Direction

DOWN, FLAT, UP = range(3)


def direction_index(before: float, after: float, tick: float | None) -> int:
    """Tell DOWN, FLAT or UP for a move between two closes; flat below half a price tick, or equal where unknown."""
    move = after - before
    if abs(move) < 0.5 * tick if tick else move == 0:
        return FLAT
    return UP if move > 0 else DOWN


def direction(before: float, after: float, tick: float | None) -> Direction:
    """Name the direction of a move between two closes."""
    return DIRECTIONS[direction_index(before, after, tick)]
