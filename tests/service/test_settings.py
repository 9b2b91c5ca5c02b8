"""Settings: defaults of the contract, and one clear line for everything that cannot work."""

from pathlib import Path

import pytest

from service.ports import ConfigurationError
from service.settings import MASK, Settings, load_settings

CONTRACT_DEFAULTS = {
    "LIVEWICK_DATABASE_URL": "sqlite+aiosqlite:///data/livewick.db",
    "LIVEWICK_HOST": "127.0.0.1",
    "LIVEWICK_PORT": 8000,
    "LIVEWICK_FEED": "auto",
    "LIVEWICK_EXCHANGE": "binance",
    "LIVEWICK_SYMBOLS": ("ETH/USDT",),
    "LIVEWICK_TIMEFRAME": "1s",
    "LIVEWICK_CCXT": {},
    "LIVEWICK_BACKFILL": 3600,
    "LIVEWICK_DEVICE": "auto",
    "LIVEWICK_MODEL": "small",
    "LIVEWICK_WINDOW": None,
    "LIVEWICK_TREND_HORIZON": 60,
    "LIVEWICK_LEARNING_RATE": None,
    "LIVEWICK_CLIP_NORM": 1.0,
    "LIVEWICK_PRECISION": "fp32",
    "LIVEWICK_GRADIENT_CHECKPOINTING": False,
    "LIVEWICK_SEED": 0,
    "LIVEWICK_CHECKPOINT_EVERY": 300,
    "LIVEWICK_RETENTION_DAYS": 0,
    "LIVEWICK_API_KEYS": (),
    "LIVEWICK_ALLOWED_ORIGINS": (),
    "LIVEWICK_ALLOW_ANONYMOUS": False,
    "LIVEWICK_LOG_FORMAT": "console",
    "LIVEWICK_LOG_LEVEL": "info",
}


def read(**environment: str) -> Settings:
    return load_settings({f"LIVEWICK_{name}": value for name, value in environment.items()}, env_file=None)


def test_defaults_are_those_of_the_contract() -> None:
    assert read().masked().items() >= CONTRACT_DEFAULTS.items()


def test_lists_are_split_at_commas_and_json_is_parsed() -> None:
    settings = read(SYMBOLS="ETH/USDT, BTC/USDT", API_KEYS="one,two,", CCXT='{"timeout": 5000}')
    assert settings.symbols == ("ETH/USDT", "BTC/USDT")
    assert settings.api_keys == ("one", "two")
    assert settings.ccxt == {"timeout": 5000}


def test_an_empty_value_means_the_default() -> None:
    assert read(PORT="", WINDOW="", LEARNING_RATE="", CCXT="") == read()


def test_the_environment_wins_over_the_file(tmp_path: Path) -> None:
    file = tmp_path / ".env"
    file.write_text("LIVEWICK_PORT=1234\nLIVEWICK_SEED=7\nPOSTGRES_PASSWORD=other programs' names are not ours\n")
    settings = load_settings({"LIVEWICK_PORT": "4321"}, file)
    assert (settings.port, settings.seed) == (4321, 7)


def test_an_unreadable_file_is_refused(tmp_path: Path) -> None:
    file = tmp_path / ".env"
    file.write_bytes(b"LIVEWICK_PORT=\xff\xfe")
    with pytest.raises(ConfigurationError, match=r"\.env cannot be read"):
        load_settings({}, file)


@pytest.mark.parametrize(
    ("environment", "said"),
    [
        ({"PROT": "1"}, "unknown setting LIVEWICK_PROT; did you mean LIVEWICK_PORT?"),
        ({"port": "1"}, "unknown setting LIVEWICK_port; did you mean LIVEWICK_PORT?"),
        ({"PORT": "70000"}, "LIVEWICK_PORT"),
        ({"PORT": "eighty"}, "LIVEWICK_PORT"),
        ({"FEED": "real"}, "LIVEWICK_FEED"),
        ({"CCXT": "{x"}, "LIVEWICK_CCXT: is not a JSON object"),
        ({"CCXT": "[1]"}, "LIVEWICK_CCXT"),
        ({"CCXT": '{"timeout": NaN}'}, "LIVEWICK_CCXT: is not a JSON object"),
        ({"CCXT": '{"timeout": 1e999}'}, "LIVEWICK_CCXT"),
        ({"CCXT": '{"timeout": -Infinity}'}, "LIVEWICK_CCXT: is not a JSON object"),
        ({"CLIP_NORM": "nan"}, "LIVEWICK_CLIP_NORM"),
        ({"CLIP_NORM": "0"}, "LIVEWICK_CLIP_NORM"),
        ({"LEARNING_RATE": "inf"}, "LIVEWICK_LEARNING_RATE"),
        ({"SYMBOLS": " , "}, "LIVEWICK_SYMBOLS: names no symbol"),
        ({"SYMBOLS": "ETH/USDT,ETH/USDT"}, "LIVEWICK_SYMBOLS: names a symbol twice"),
        ({"TIMEFRAME": "fast"}, "LIVEWICK_TIMEFRAME"),
        ({"DATABASE_URL": "mysql://localhost/x"}, "LIVEWICK_DATABASE_URL: must start with one of"),
        ({"DATABASE_URL": "nonsense"}, "LIVEWICK_DATABASE_URL: is not a database URL"),
        ({"DEVICE": "tpu"}, "LIVEWICK_DEVICE"),
        ({"MODEL": "huge"}, "LIVEWICK_MODEL"),
        ({"BACKFILL": "-1"}, "LIVEWICK_BACKFILL"),
        ({"HOST": "0.0.0.0"}, "LIVEWICK_ALLOW_ANONYMOUS=true"),
        ({"DATABASE_URL": "postgresql+asyncpg://u:p@h:notaport/d"}, "LIVEWICK_DATABASE_URL: is not a database URL"),
        ({"RETENTION_DAYS": "1000000000000"}, "LIVEWICK_RETENTION_DAYS"),
        ({"TRUSTED_PROXIES": "10.0.0.0/8,bogus"}, "LIVEWICK_TRUSTED_PROXIES: must be addresses"),
        ({"ALLOWED_ORIGINS": "not a url"}, "LIVEWICK_ALLOWED_ORIGINS: must be origins"),
        ({"CHECKPOINT_URL": "bogus://x"}, "LIVEWICK_CHECKPOINT_URL"),
        ({"API_KEYS": "k\udcff"}, "LIVEWICK_API_KEYS: holds bytes that are no text"),
        ({"DATABASE_URL": "sqlite+aiosqlite:///a\0b.db"}, "LIVEWICK_DATABASE_URL: holds bytes that are no text"),
    ],
)
def test_what_cannot_work_is_refused_by_name(environment: dict[str, str], said: str) -> None:
    with pytest.raises(ConfigurationError) as refusal:
        read(**environment)
    assert said in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_a_file_with_a_line_that_makes_no_sense_is_refused_by_its_number(tmp_path: Path) -> None:
    file = tmp_path / ".env"
    file.write_text('LIVEWICK_PORT=1234\nLIVEWICK_API_KEYS="unterminated\n')
    with pytest.raises(ConfigurationError, match=r"\.env:2: cannot be read") as refusal:
        load_settings({}, file)
    assert "unterminated" not in str(refusal.value)


@pytest.mark.parametrize("more", [{"API_KEYS": "k"}, {"ALLOW_ANONYMOUS": "true"}])
def test_an_open_host_is_accepted_with_keys_or_on_purpose(more: dict[str, str]) -> None:
    assert read(HOST="0.0.0.0", **more).host == "0.0.0.0"


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.2", "::1", "localhost"])
def test_a_loopback_host_needs_no_keys(host: str) -> None:
    assert read(HOST=host).host == host


def test_secrets_are_masked() -> None:
    settings = read(
        DATABASE_URL="postgresql+asyncpg://user:hunter2@db/livewick",
        API_KEYS="hunter2",
        CCXT='{"apiKey": "hunter2", "httpsProxy": "http://u:hunter2@proxy:1", "options": {"password": "hunter2"},'
        ' "urls": {"api": "http://u:hunter2@host/"}, "headers": {"Authorization": "hunter2"}}',
        CHECKPOINT_URL="s3://key:hunter2@bucket/x",
    )
    assert "hunter2" not in str(settings.masked())
    assert MASK in str(settings.masked())
