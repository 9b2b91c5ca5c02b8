"""Settings: environment variables and ``.env``, all named ``LIVEWICK_…``; read only by ``cli.py`` and ``app.py``."""

from __future__ import annotations

import difflib
import ipaddress
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from dotenv import dotenv_values
from dotenv.parser import parse_stream
from fsspec import available_protocols
from fsspec.core import split_protocol
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError

from models.config import LearnerConfig
from service.ports import ConfigurationError
from service.strict_json import InvalidJSON, decode
from service.timeframe import PATTERN, interval_ms_of

PREFIX = "LIVEWICK_"
DATABASE_DRIVERS = ("sqlite+aiosqlite", "postgresql+asyncpg")
SECRET_WORDS = re.compile(r"key|secret|password|token|proxy|auth|private|passphrase|credential|cookie", re.IGNORECASE)
MASK = "********"

Port = Annotated[int, Field(ge=0, le=65535)]
Positive = Annotated[int, Field(ge=1)]


class Settings(BaseModel):
    """The values in force. Names, defaults and meanings are those of the README's settings table."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    database_url: str = "sqlite+aiosqlite:///data/livewick.db"
    host: str = "127.0.0.1"
    port: Port = 8000
    feed: Literal["auto", "exchange", "simulated"] = "auto"
    exchange: str = Field("binance", pattern=r"^[a-z0-9_]+$")
    symbols: tuple[str, ...] = ("ETH/USDT",)
    timeframe: str = Field("1s", pattern=PATTERN)
    ccxt: dict[str, Any] = Field(default_factory=dict)
    backfill: int = Field(3600, ge=0, le=1_000_000)
    device: str = Field("auto", pattern=r"^(auto|cpu|cuda(:\d+)?)$")
    model: Literal["small", "base", "large"] = "small"
    window: int | None = Field(None, ge=2, le=4096)
    trend_horizon: int = Field(60, ge=1, le=86_400)
    learning_rate: float | None = Field(None, gt=0, le=1)
    clip_norm: float = Field(1.0, gt=0)
    precision: Literal["fp32", "bf16", "fp16"] = "fp32"
    gradient_checkpointing: bool = False
    seed: int = Field(0, ge=0, lt=2**63)
    checkpoint_every: Positive = 300
    checkpoint_url: str = ""
    pretrained: Path | None = None
    retention_days: int = Field(0, ge=0, le=36_500)
    api_keys: tuple[str, ...] = ()
    allowed_origins: tuple[str, ...] = ()
    allowed_hosts: tuple[str, ...] = ()
    trusted_proxies: tuple[str, ...] = ()
    allow_anonymous: bool = False
    log_format: Literal["console", "json"] = "console"
    log_level: Literal["debug", "info", "warning", "error"] = "info"

    @field_validator("symbols", "api_keys", "allowed_origins", "allowed_hosts", "trusted_proxies", mode="before")
    @classmethod
    def _split_commas(cls, value: object) -> object:
        if isinstance(value, str):
            return tuple(part.strip() for part in value.split(",") if part.strip())
        return value

    @field_validator("symbols")
    @classmethod
    def _some_symbols(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if not value:
            raise ValueError("names no symbol")
        if len(set(value)) != len(value):
            raise ValueError("names a symbol twice")
        return value

    @field_validator("ccxt", mode="before")
    @classmethod
    def _json_object(cls, value: object) -> object:
        if not isinstance(value, str):
            return value
        try:
            return decode(value or "{}")
        except InvalidJSON as error:
            raise ValueError(f"is not a JSON object ({error})") from None

    @field_validator("log_level", mode="before")
    @classmethod
    def _lower(cls, value: object) -> object:
        return value.lower() if isinstance(value, str) else value

    @field_validator("database_url")
    @classmethod
    def _known_database(cls, value: str) -> str:
        try:
            driver = make_url(value).drivername
        except (ArgumentError, ValueError):
            raise ValueError("is not a database URL") from None
        if driver not in DATABASE_DRIVERS:
            raise ValueError(f"must start with one of {', '.join(f'{name}://' for name in DATABASE_DRIVERS)}")
        return value

    @field_validator("trusted_proxies")
    @classmethod
    def _networks(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for proxy in value:
            if proxy != "*":
                try:
                    ipaddress.ip_network(proxy, strict=False)
                except ValueError:
                    raise ValueError("must be addresses or networks, or *") from None
        return value

    @field_validator("allowed_origins")
    @classmethod
    def _origins(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if not all(re.fullmatch(r"\*|https?://[^/\s]+", origin) for origin in value):
            raise ValueError("must be origins like https://example.org, or *")
        return value

    @field_validator("checkpoint_url")
    @classmethod
    def _known_files(cls, value: str) -> str:
        protocol, _ = split_protocol(value)
        if protocol is not None and protocol not in available_protocols():
            raise ValueError("names a kind of file system that fsspec does not know")
        return value

    @model_validator(mode="after")
    def _no_open_door(self) -> Settings:
        if not is_loopback(self.host) and not self.api_keys and not self.allow_anonymous:
            raise ValueError(
                f"{PREFIX}HOST is not a loopback address and {PREFIX}API_KEYS is empty: set keys, "
                f"or {PREFIX}ALLOW_ANONYMOUS=true if everyone may use this service"
            )
        return self

    @property
    def interval_ms(self) -> int:
        """Length of the timeframe in milliseconds."""
        return interval_ms_of(self.timeframe)

    def learner(self, market: str, interval_ms: int, tick: float | None, simulated: bool = False) -> LearnerConfig:
        """Return the learner's configuration that these settings mean for a market."""
        return LearnerConfig(
            market=market,
            interval_ms=interval_ms,
            tick=tick,
            model=self.model,
            window=self.window,
            trend_horizon=self.trend_horizon,
            learning_rate=self.learning_rate,
            clip_norm=self.clip_norm,
            precision=self.precision,
            gradient_checkpointing=self.gradient_checkpointing,
            seed=self.seed,
            device=self.device,
            simulated=simulated,
        )

    def masked(self) -> dict[str, Any]:
        """Return every value under its environment name, secrets replaced by a mask."""
        values = self.model_dump()
        values["database_url"] = _mask_database_url(self.database_url)
        values["api_keys"] = tuple(MASK for _ in self.api_keys)
        values["ccxt"] = _mask(self.ccxt)
        values["checkpoint_url"] = _mask_url(self.checkpoint_url)
        values["pretrained"] = str(self.pretrained or "")
        return {PREFIX + name.upper(): value for name, value in values.items()}


def is_loopback(host: str) -> bool:
    """Say whether a server bound to ``host`` can be reached from this machine only."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def load_settings(environment: Mapping[str, str] | None = None, env_file: Path | None = Path(".env")) -> Settings:
    """Read the settings; the environment wins over ``env_file``. Raises ConfigurationError naming every bad one."""
    from_file: dict[str, str] = {}
    if env_file is not None and env_file.is_file():
        try:
            from_file = _read_env_file(env_file)
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigurationError(f"{env_file} cannot be read: {error}") from None
    merged = {**from_file, **(os.environ if environment is None else environment)}
    ours = {name[len(PREFIX) :]: value for name, value in merged.items() if name.startswith(PREFIX)}
    _refuse_unknown(ours)
    _refuse_bytes(ours)
    given = {name.lower(): value for name, value in ours.items()}
    # An empty value means the default: docker-compose hands on variables that nobody set as empty ones.
    try:
        return Settings.model_validate({name: value for name, value in given.items() if value != ""})
    except ValidationError as error:
        raise ConfigurationError("; ".join(_describe(item) for item in error.errors(include_input=False))) from None


def _refuse_unknown(given: Mapping[str, str]) -> None:
    known = [name.upper() for name in Settings.model_fields]
    for name in sorted(set(given) - set(known)):
        close = difflib.get_close_matches(name.upper(), known, 1)
        hint = f"; did you mean {PREFIX}{close[0]}?" if close else ""
        raise ConfigurationError(f"unknown setting {PREFIX}{name}{hint}")


def _refuse_bytes(given: Mapping[str, str]) -> None:
    for name, value in given.items():
        # The system hands on bytes that are no UTF-8 as lone surrogates.
        if "\0" in value or any("\ud800" <= character <= "\udfff" for character in value):
            raise ConfigurationError(f"{PREFIX}{name}: holds bytes that are no text")


def _read_env_file(path: Path) -> dict[str, str]:
    """Read a ``.env`` file. Raises ConfigurationError where a line makes no sense: dotenv alone would skip it."""
    with path.open(encoding="utf-8") as file:
        for line in parse_stream(file):
            if line.error:
                raise ConfigurationError(f"{path}:{line.original.line}: cannot be read")
    return {name: value or "" for name, value in dotenv_values(path).items()}


def _describe(error: Mapping[str, Any]) -> str:
    message = str(error["msg"]).removeprefix("Value error, ")
    name = ".".join(str(part) for part in error["loc"]).upper()
    return f"{PREFIX}{name}: {message}" if name else message


def _mask(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: MASK if SECRET_WORDS.search(key) and item else _mask(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_mask(item) for item in value]
    return _mask_url(value) if isinstance(value, str) else value


def _mask_database_url(value: str) -> str:
    url = make_url(value)
    hidden = {name: MASK for name in url.query if SECRET_WORDS.search(name)}
    return url.update_query_dict(hidden).render_as_string(hide_password=True)


def _mask_url(value: str) -> str:
    return re.sub(r"(?<=://)[^/@\s]+@", f"{MASK}@", value)
