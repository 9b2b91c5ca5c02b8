"""One example of every answer, for the API documentation; a test holds each against its schema and a real answer."""

from __future__ import annotations

from typing import Any

MARKET = "binance:ETH/USDT"
CANDLE = {
    "market": MARKET,
    "open_time": 1_559_865_600_000,
    "open": 250.1,
    "high": 250.2,
    "low": 250.0,
    "close": 250.15,
    "volume": 3.2,
    "source": "live",
}
PREDICTION = {
    "market": MARKET,
    "open_time": 1_559_865_601_000,
    "made_at": 1_559_865_601_012,
    "step": 3600,
    "p_down": 0.24,
    "p_flat": 0.45,
    "p_up": 0.31,
    "direction": "flat",
    "close": 250.152,
    "close_low": 250.08,
    "close_high": 250.22,
    "trend": {"horizon": 60, "p_up": 0.52},
    "weights": {"network": 0.7, "linear": 0.2, "markov": 0.1},
    "simulated": False,
}
STEP = {
    "market": MARKET,
    "open_time": 1_559_865_600_000,
    "source": "live",
    "step": 3600,
    "loss": 0.93,
    "train_loss": 1.4,
    "correct": True,
    "trend_correct": None,
    "direction": "flat",
    "label": "flat",
    "grad_norm": 0.6,
    "grad_norm_clipped": 0.6,
    "clipped": False,
    "skipped": None,
    "learning_rate": 3e-5,
    "infer_ms": 2.1,
    "train_ms": 8.4,
    "lag_ms": 63.0,
    "queue_depth": 0,
}
EVENT = {"market": MARKET, "kind": "recovered", "detail": {"seconds": 3.2}, "at": 1_559_865_600_000}
MODEL_SCORE = {
    "accuracy": 0.54,
    "balanced_accuracy": 0.49,
    "log_loss": 0.95,
    "brier": 0.57,
    "ece": 0.005,
    "trend_accuracy": 0.51,
    "interval_coverage": 0.8,
    "close_mae": 0.043,
}
SCORE = {
    "market": MARKET,
    "window": 3600,
    "candles": 3600,
    "moved": 0.55,
    "share": {"down": 0.27, "flat": 0.45, "up": 0.28},
    "model": MODEL_SCORE,
    "baselines": {"majority": {"accuracy": 0.45, "log_loss": 1.07}, "linear": {"accuracy": 0.53, "log_loss": 0.97}},
    "skill": {"majority": 0.112, "linear": 0.021},
    "accuracy_interval": [0.524, 0.556],
    "verdict": "better",
}
FOLLOWED = {
    "market": MARKET,
    "interval_ms": 1000,
    "phase": "live",
    "reason": "",
    "simulated": False,
    "feed": {
        "exchange": "binance",
        "simulated": False,
        "status": "live",
        "detail": "",
        "last_open_time": 1_559_865_600_000,
        "age_ms": 1040,
        "lag_ms": 40.0,
        "reconnects": 0,
        "backfilled": 3600,
        "backfill_total": 3600,
        "filled": 12,
        "gaps": 0,
        "corrections": 0,
        "rejected": {},
    },
    "warmup": {"done": 3600, "total": 3600},
    "learner_alive": True,
    "learner_restarts": 0,
    "paused": False,
    "database_ok": True,
    "backlog": 0,
    "queue_depth": 0,
    "step": 3600,
    "checkpoint_open_time": 1_559_865_500_000,
    "checkpoint_age_ms": 101_000,
}
MODEL = {
    "market": MARKET,
    "name": "livewick-small",
    "parameters": 21_000,
    "device": "cpu",
    "precision": "fp32",
    "step": 3600,
    "paused": False,
    "restarts": 0,
    "checkpoint_open_time": 1_559_865_500_000,
    "checkpoint_age_ms": 101_000,
}

EXAMPLES: dict[str, Any] = {
    "CandlePage": {"items": [CANDLE], "next": "t16b2e0ab3e8"},
    "PredictionPage": {"items": [PREDICTION], "next": None},
    "StepPage": {"items": [STEP], "next": None},
    "EventPage": {"items": [EVENT], "next": None},
    "SeriesOut": {
        "bucket": 60,
        "items": [{"open_time": 1_559_865_600_000, "loss": 0.95, "accuracy": 0.54, "count": 60}],
        "next": None,
    },
    "PredictionOut": PREDICTION,
    "ScoreOut": SCORE,
    "MarketsOut": {"markets": [FOLLOWED], "version": "0.1.0", "seq": 1_559_862_000_042},
    "ModelOut": MODEL,
    "PausedOut": {"market": MARKET, "paused": True},
    "CheckpointOut": {"market": MARKET, "open_time": 1_559_865_500_000, "step": 3500},
    "LiveOut": {"status": "live"},
    "ReadyOut": {
        "status": "ready",
        "checks": {
            "database": "ok",
            f"{MARKET} records": "ok",
            f"{MARKET} learner": "ok",
            f"{MARKET} predictions": "ok",
        },
    },
    "TicketOut": {"ticket": "kJ0p2q5w8r1t4y7u0i3o6p9a2s5d8f1g4h7j0k3l6z9", "expires_in": 30},
}
"""By the name of the answer's schema."""
