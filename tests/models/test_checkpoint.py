import hashlib
import os
import pickle
import random
from pathlib import Path

import pytest
import torch

from models.candle import Candle
from models.checkpoint import SCHEMA, DamagedCheckpoint, IncompatibleState, dump_state, load_state
from models.config import LearnerConfig
from models.learner import Learner
from models.replay import CAPACITY
from models.score import SCORE_WINDOW_MAX
from tests.models.streams import TICK, stream


def test_one_piece_of_bytes_holds_everything() -> None:
    state = {"schema": SCHEMA, "config": {"market": "m"}, "tensor": torch.arange(3.0), "list": [1, None, "x", 2.5]}
    again = load_state(dump_state(state))
    assert torch.equal(again.pop("tensor"), state.pop("tensor"))  # type: ignore[arg-type]
    assert again == state


@pytest.mark.parametrize("cut", [0, 1, 20, 60, -1])
def test_a_cut_off_checkpoint_is_refused(cut: int) -> None:
    with pytest.raises(DamagedCheckpoint, match="not a whole checkpoint"):
        load_state(dump_state({"schema": SCHEMA})[:cut])


def test_failures_15_one_changed_byte_anywhere_is_noticed() -> None:
    whole = dump_state({"schema": SCHEMA, "tensor": torch.arange(10.0)})
    for place in range(0, len(whole), 97):
        changed = bytearray(whole)
        changed[place] ^= 1
        with pytest.raises(DamagedCheckpoint):
            load_state(bytes(changed))


class Trap:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, (str(self.path),)


def test_failures_17_a_crafted_checkpoint_runs_no_code(tmp_path: Path) -> None:
    trap = dump_state({"schema": SCHEMA, "trap": Trap(tmp_path / "sprung")})  # with a right checksum
    for crafted in (trap, pickle.dumps(Trap(tmp_path / "sprung"))):
        with pytest.raises(DamagedCheckpoint):
            load_state(crafted)
    assert not (tmp_path / "sprung").exists()


def sealed(body: bytes) -> bytes:
    """Put a right digest on any bytes."""
    return dump_state({})[:8] + hashlib.sha256(body).digest() + body


def test_failures_17_whatever_stands_under_a_right_digest_is_read_or_refused() -> None:
    """Of 400 forged states 82 once broke the reader in six ways that were no refusals."""
    body = dump_state({"schema": SCHEMA, "tensors": [torch.arange(3.0) for _ in range(9)], "text": ["x", 1, None]})[40:]
    dice = random.Random(0)
    refused = 0
    for _ in range(400):
        changed = bytearray(body[: dice.choice([len(body), dice.randrange(len(body))])])
        for _ in range(dice.randrange(1, 9)):
            changed[dice.randrange(min(len(changed), 700))] = dice.randrange(256)
        try:
            load_state(sealed(bytes(changed)))
        except (DamagedCheckpoint, IncompatibleState):
            refused += 1
    assert refused > 200


def test_another_version_is_refused() -> None:
    with pytest.raises(IncompatibleState, match="version"):
        load_state(dump_state({"schema": 999}))


def test_a_full_small_state_is_at_most_eight_mebibytes() -> None:
    """Full: replay and score windows at their capacity, as after a day."""
    made = Learner(LearnerConfig("m", tick=TICK))
    for candle in stream(100):
        made.predict(candle, 0)
        made.learn(candle)
    made.replay.count = CAPACITY
    made.scores.tallies[False].candles = SCORE_WINDOW_MAX
    assert 4 * 2**20 < len(dump_state(made.state_dict())) <= 8 * 2**20


def test_a_state_may_move_to_another_device_or_be_marked_simulated() -> None:
    made = Learner(LearnerConfig("m", tick=TICK))
    other = Learner(LearnerConfig("m", tick=TICK, simulated=True, gradient_checkpointing=True))
    other.load_state_dict(made.state_dict())
    candle = Candle("m", 1000, 1.0, 1.0, 1.0, 1.0, 0.0)
    assert other.predict(candle, 0).simulated
