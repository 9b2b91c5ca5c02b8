"""Checkpoint: a learner's whole state as one piece of bytes, refused clearly when damaged or foreign."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import torch

from models.config import STATE_VERSION, LearnerConfig

SCHEMA = STATE_VERSION
_MAGIC = b"LIVEWICK"
_FREE = ("market", "device", "simulated", "gradient_checkpointing")
"""Settings that may differ between saving and loading: they decide where and how, not what."""


class DamagedCheckpoint(ValueError):
    """The bytes are not a whole checkpoint: cut off, changed, or something else altogether."""


class IncompatibleState(ValueError):
    """The state belongs to another configuration or version; the message says what differs."""


def dump_state(state: dict[str, Any]) -> bytes:
    """Serialise a learner's ``state_dict`` into one unit: magic, SHA-256 of the rest, the rest."""
    buffer = io.BytesIO()
    torch.save(state, buffer)
    body = buffer.getvalue()
    return _MAGIC + hashlib.sha256(body).digest() + body


def load_state(data: bytes) -> dict[str, Any]:
    """Read what ``dump_state`` wrote; runs no code of the file. Raises DamagedCheckpoint or IncompatibleState."""
    digest, body = data[len(_MAGIC) : len(_MAGIC) + 32], data[len(_MAGIC) + 32 :]
    if not data.startswith(_MAGIC) or hashlib.sha256(body).digest() != digest:
        raise DamagedCheckpoint(f"{len(data)} bytes are not a whole checkpoint")
    try:
        state = torch.load(io.BytesIO(body), map_location="cpu", weights_only=True)
    except Exception as error:  # bytes forged under a right digest break the reader wherever they like
        raise DamagedCheckpoint("the checkpoint holds something other than plain values and tensors") from error
    if not isinstance(state, dict) or state.get("schema") != SCHEMA:
        raise IncompatibleState(f"the checkpoint is not of version {SCHEMA}")
    return state


def hash_state(state: Any) -> str:
    """Hash a state of tensors, arrays, numbers, strings, lists and dicts: equal bits, equal hash (SHA-256)."""
    digest = hashlib.sha256()
    _feed(digest.update, state)
    return digest.hexdigest()


def _feed(update: Callable[[bytes], object], value: Any) -> None:
    if isinstance(value, torch.Tensor):
        value = value.detach().cpu().contiguous().view(torch.uint8) if value.dim() else value.item()
    if isinstance(value, dict):
        for key in sorted(value, key=repr):
            update(f"{key!r}:".encode())
            _feed(update, value[key])
    elif isinstance(value, (list, tuple)):
        update(f"[{len(value)}".encode())
        for item in value:
            _feed(update, item)
    else:
        update(value.numpy().tobytes() if isinstance(value, torch.Tensor) else f"{value!r};".encode())


def check_fits(config: LearnerConfig, state: dict[str, Any]) -> None:
    """Raise IncompatibleState unless the state was saved by a learner of the same configuration."""
    if state.get("schema") != SCHEMA:
        raise IncompatibleState(f"the state is of version {state.get('schema')!r}, not {SCHEMA}")
    own, saved = asdict(config), state.get("config", {})
    differing = [name for name in own if name not in _FREE and own[name] != saved.get(name)]
    if differing:
        listed = ", ".join(f"{name} {saved.get(name)!r} instead of {own[name]!r}" for name in differing)
        raise IncompatibleState(f"the state was saved with {listed}")
