"""The first tables: runs, candles, predictions, steps, checkpoints, events, and views with readable time."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

RowId = sa.BigInteger().with_variant(sa.Integer, "sqlite")
Direction = ("down", "flat", "up")
Source = ("live", "backfill", "filled")


def finite(table: str, *columns: str) -> list[sa.CheckConstraint]:
    """Refuse NaN and the infinities (PostgreSQL sorts NaN above every number)."""
    return [sa.CheckConstraint(f"abs({name}) < 1e308", name=op.f(f"ck_{table}_{name}_finite")) for name in columns]


def one_of(table: str, column: str, words: tuple[str, ...]) -> sa.CheckConstraint:
    """Allow only these words, or NULL."""
    quoted = ", ".join(f"'{word}'" for word in words)
    return sa.CheckConstraint(f"{column} IN ({quoted})", name=op.f(f"ck_{table}_{column}_known"))


def need(name: str, kind: Any) -> sa.Column[Any]:
    """Return a NOT NULL column."""
    return sa.Column(name, kind, nullable=False)


def doubles(*names: str, nullable: bool = False) -> list[sa.Column[Any]]:
    """Return double precision columns."""
    return [sa.Column(name, sa.Double, nullable=nullable) for name in names]


def upgrade() -> None:
    """Make everything."""
    create_runs()
    create_candles()
    create_predictions()
    create_steps()
    create_checkpoints()
    create_events()
    if op.get_bind().dialect.name == "postgresql":
        create_views()


def downgrade() -> None:
    """Remove everything, with its data."""
    if op.get_bind().dialect.name == "postgresql":
        for table in ("candles", "predictions", "steps"):
            op.execute(f"DROP VIEW {table}_by_time")
    for table in ("events", "checkpoints", "steps", "predictions", "candles", "runs"):
        op.drop_table(table)


def create_runs() -> None:
    """Create ``runs``."""
    op.create_table(
        "runs",
        sa.Column("id", RowId, nullable=False, autoincrement=True),
        need("market", sa.String),
        need("config", sa.JSON),
        need("started_at", sa.BigInteger),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_runs")),
    )
    op.create_index(op.f("ix_runs_market_id"), "runs", ["market", "id"])


def create_candles() -> None:
    """Create ``candles``."""
    op.create_table(
        "candles",
        need("market", sa.String),
        need("open_time", sa.BigInteger),
        *doubles("open", "high", "low", "close", "volume"),
        need("source", sa.String),
        sa.PrimaryKeyConstraint("market", "open_time", name=op.f("pk_candles")),
        *finite("candles", "open", "high", "low", "close", "volume"),
        one_of("candles", "source", Source),
        sqlite_with_rowid=False,
    )


def create_predictions() -> None:
    """Create ``predictions``."""
    numbers = ("close", "close_low", "close_high")
    op.create_table(
        "predictions",
        need("run_id", RowId),
        need("open_time", sa.BigInteger),
        need("market", sa.String),
        need("made_at", sa.BigInteger),
        need("step", sa.BigInteger),
        *doubles("p_down", "p_flat", "p_up"),
        need("direction", sa.String),
        *doubles(*numbers),
        need("trend_horizon", sa.Integer),
        need("trend_p_up", sa.Double),
        need("weights", sa.JSON),
        need("simulated", sa.Boolean),
        sa.PrimaryKeyConstraint("run_id", "open_time", name=op.f("pk_predictions")),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name=op.f("fk_predictions_run_id")),
        *finite("predictions", "p_down", "p_flat", "p_up", *numbers, "trend_p_up"),
        one_of("predictions", "direction", Direction),
        sqlite_with_rowid=False,
    )


def create_steps() -> None:
    """Create ``steps``."""
    op.create_table(
        "steps",
        need("run_id", RowId),
        need("open_time", sa.BigInteger),
        need("market", sa.String),
        need("source", sa.String),
        need("step", sa.BigInteger),
        *doubles("loss", "train_loss", nullable=True),
        sa.Column("correct", sa.Boolean),
        sa.Column("trend_correct", sa.Boolean),
        sa.Column("direction", sa.String),
        sa.Column("label", sa.String),
        *doubles("grad_norm", "grad_norm_clipped", nullable=True),
        need("clipped", sa.Boolean),
        sa.Column("skipped", sa.String),
        need("learning_rate", sa.Double),
        *doubles("infer_ms", "train_ms", "lag_ms", nullable=True),
        sa.Column("queue_depth", sa.Integer),
        sa.PrimaryKeyConstraint("run_id", "open_time", name=op.f("pk_steps")),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name=op.f("fk_steps_run_id")),
        *finite("steps", "loss", "train_loss", "grad_norm", "grad_norm_clipped", "learning_rate"),
        *finite("steps", "infer_ms", "train_ms", "lag_ms"),
        one_of("steps", "source", Source),
        one_of("steps", "direction", Direction),
        one_of("steps", "label", Direction),
        one_of("steps", "skipped", ("nonfinite", "warmup", "gap", "paused")),
        sqlite_with_rowid=False,
        postgresql_with={"fillfactor": 90},
    )


def create_checkpoints() -> None:
    """Create ``checkpoints``."""
    op.create_table(
        "checkpoints",
        sa.Column("id", RowId, nullable=False, autoincrement=True),
        need("run_id", RowId),
        need("open_time", sa.BigInteger),
        need("step", sa.BigInteger),
        need("created_at", sa.BigInteger),
        sa.Column("loss", sa.Double),
        need("sha256", sa.String(64)),
        need("size", sa.BigInteger),
        sa.Column("data", sa.LargeBinary),
        sa.Column("location", sa.String),
        sa.Column("set_aside", sa.String),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_checkpoints")),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name=op.f("fk_checkpoints_run_id")),
        sa.UniqueConstraint("run_id", "open_time", name=op.f("uq_checkpoints_run_id_open_time")),
        *finite("checkpoints", "loss"),
        sa.CheckConstraint("(data IS NULL) <> (location IS NULL)", name=op.f("ck_checkpoints_one_place")),
    )
    if op.get_bind().dialect.name == "postgresql":
        # Weights do not compress; trying costs time on every save.
        op.execute("ALTER TABLE checkpoints ALTER COLUMN data SET STORAGE EXTERNAL")


def create_events() -> None:
    """Create ``events``."""
    op.create_table(
        "events",
        sa.Column("id", RowId, nullable=False, autoincrement=True),
        need("market", sa.String),
        need("kind", sa.String),
        need("detail", sa.JSON),
        need("at", sa.BigInteger),
        need("digest", sa.String(16)),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_events")),
        sa.UniqueConstraint("market", "at", "kind", "digest", name=op.f("uq_events_market_at_kind_digest")),
    )


def create_views() -> None:
    """Create ``<table>_by_time`` with a timestamptz first column, and what keeps a filter on it fast.

    Rows lie in time order, so a block range index of a few kilobytes finds any stretch of time in any number of rows.
    """
    for table in ("candles", "predictions", "steps"):
        moment = "to_timestamp(open_time / 1000.0::double precision)"
        op.execute(f"CREATE INDEX ix_{table}_time ON {table} USING brin (({moment})) WITH (autosummarize = on)")
        op.execute(f"CREATE VIEW {table}_by_time AS SELECT {moment} AS time, {table}.* FROM {table}")  # noqa: S608  # nosec B608 - our own names
