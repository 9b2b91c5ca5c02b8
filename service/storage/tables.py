"""The tables, as SQLAlchemy sees them; the schema itself is made by ``migrations/`` only."""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    Double,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    UniqueConstraint,
)

metadata = MetaData(
    naming_convention={
        "pk": "pk_%(table_name)s",
        "fk": "fk_%(table_name)s_%(column_0_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
    }
)

# SQLite counts up by itself only in a column that is exactly INTEGER.
RowId = BigInteger().with_variant(Integer, "sqlite")


def finite(*columns: str) -> list[CheckConstraint]:
    """Return one constraint per column that refuses NaN and the infinities on both databases (NULL passes).

    PostgreSQL sorts NaN above every number and SQLite turns it into NULL, so one comparison covers all three.
    """
    return [CheckConstraint(f"abs({name}) < 1e308", name=f"{name}_finite") for name in columns]


def one_of(column: str, *words: str) -> CheckConstraint:
    """Return a constraint that lets only these words (or NULL) into a column."""
    quoted = ", ".join(f"'{word}'" for word in words)
    return CheckConstraint(f"{column} IN ({quoted})", name=f"{column}_known")


def required(name: str, kind: Any) -> Column[Any]:
    """Return a column that must have a value."""
    return Column(name, kind, nullable=False)


runs = Table(
    "runs",
    metadata,
    Column("id", RowId, primary_key=True, autoincrement=True),
    required("market", String),
    required("config", JSON),
    required("started_at", BigInteger),
    Index("ix_runs_market_id", "market", "id"),
)

candles = Table(
    "candles",
    metadata,
    Column("market", String, primary_key=True),
    Column("open_time", BigInteger, primary_key=True, autoincrement=False),
    required("open", Double),
    required("high", Double),
    required("low", Double),
    required("close", Double),
    required("volume", Double),
    required("source", String),
    *finite("open", "high", "low", "close", "volume"),
    one_of("source", "live", "backfill", "filled"),
    sqlite_with_rowid=False,
)

predictions = Table(
    "predictions",
    metadata,
    Column("run_id", RowId, ForeignKey("runs.id"), primary_key=True, autoincrement=False),
    Column("open_time", BigInteger, primary_key=True, autoincrement=False),
    required("market", String),
    required("made_at", BigInteger),
    required("step", BigInteger),
    required("p_down", Double),
    required("p_flat", Double),
    required("p_up", Double),
    required("direction", String),
    required("close", Double),
    required("close_low", Double),
    required("close_high", Double),
    required("trend_horizon", Integer),
    required("trend_p_up", Double),
    required("weights", JSON),
    required("simulated", Boolean),
    *finite("p_down", "p_flat", "p_up", "close", "close_low", "close_high", "trend_p_up"),
    one_of("direction", "down", "flat", "up"),
    sqlite_with_rowid=False,
)

steps = Table(
    "steps",
    metadata,
    Column("run_id", RowId, ForeignKey("runs.id"), primary_key=True, autoincrement=False),
    Column("open_time", BigInteger, primary_key=True, autoincrement=False),
    required("market", String),
    required("source", String),
    required("step", BigInteger),
    Column("loss", Double),
    Column("train_loss", Double),
    Column("correct", Boolean),
    Column("trend_correct", Boolean),
    Column("direction", String),
    Column("label", String),
    Column("grad_norm", Double),
    Column("grad_norm_clipped", Double),
    required("clipped", Boolean),
    Column("skipped", String),
    required("learning_rate", Double),
    Column("infer_ms", Double),
    Column("train_ms", Double),
    Column("lag_ms", Double),
    Column("queue_depth", Integer),
    *finite("loss", "train_loss", "grad_norm", "grad_norm_clipped", "learning_rate", "infer_ms", "train_ms", "lag_ms"),
    one_of("source", "live", "backfill", "filled"),
    one_of("direction", "down", "flat", "up"),
    one_of("label", "down", "flat", "up"),
    one_of("skipped", "nonfinite", "warmup", "gap", "paused"),
    sqlite_with_rowid=False,
    # Every step is updated once, when its trend comes due: room in the page keeps that update beside the row.
    postgresql_with={"fillfactor": 90},
)

checkpoints = Table(
    "checkpoints",
    metadata,
    Column("id", RowId, primary_key=True, autoincrement=True),
    Column("run_id", RowId, ForeignKey("runs.id"), nullable=False),
    required("open_time", BigInteger),
    required("step", BigInteger),
    required("created_at", BigInteger),
    Column("loss", Double),
    required("sha256", String(64)),
    required("size", BigInteger),
    Column("data", LargeBinary),
    Column("location", String),
    Column("set_aside", String),
    *finite("loss"),
    CheckConstraint("(data IS NULL) <> (location IS NULL)", name="one_place"),
    UniqueConstraint("run_id", "open_time"),
)

events = Table(
    "events",
    metadata,
    Column("id", RowId, primary_key=True, autoincrement=True),
    required("market", String),
    required("kind", String),
    required("detail", JSON),
    required("at", BigInteger),
    required("digest", String(16)),
    # Makes storing the same event again (a transaction retried whole) harmless.
    UniqueConstraint("market", "at", "kind", "digest"),
)
