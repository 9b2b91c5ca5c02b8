"""The livewick command: one clear line and the contract's exit code for everything that cannot work."""

from __future__ import annotations

import csv
import gzip
import json
import os
import socket
from pathlib import Path

import pytest

from models.candle import Candle
from service import csv_cells
from service.cli import main
from service.commands import read_file

FILE_HEADER = "ts_ms,open,high,low,close,volume\n"


@pytest.fixture(autouse=True)
def clean_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Run in an empty folder on its own database."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LIVEWICK_DATABASE_URL", f"sqlite+aiosqlite:///{tmp_path}/own.db")
    return tmp_path


@pytest.fixture
def candle_file(tmp_path: Path) -> Path:
    file = tmp_path / "candles.csv.gz"
    rows = ["ts_ms,open,high,low,close,volume"]
    for index in range(120):
        price = 100 + (index * 7 % 5) / 100
        rows.append(
            f"{1_700_000_000_000 + index * 1000},{price:.2f},{price + 0.02:.2f},{price:.2f},{price + 0.01:.2f},1.5"
        )
    del rows[50]
    file.write_bytes(gzip.compress("\n".join(rows).encode()))
    return file


def said(capsys: pytest.CaptureFixture[str]) -> str:
    """Return the one line of the error, and fail when it is more than one."""
    text = capsys.readouterr().err
    assert text.startswith("livewick: ")
    assert text.count("\n") == 1, text
    return text


def test_settings_prints_the_values_in_force_with_secrets_masked(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LIVEWICK_API_KEYS", "hunter2")
    assert main(["settings"]) == 0
    out = capsys.readouterr().out
    assert "LIVEWICK_BACKFILL=3600\n" in out
    assert "hunter2" not in out


def test_an_unknown_setting_is_wrong_usage(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LIVEWICK_PROT", "1")
    assert main(["settings"]) == 2
    assert "LIVEWICK_PROT" in said(capsys)


@pytest.mark.parametrize(
    "arguments", [[], ["nonsense"], ["replay"], ["simulate", "--port", "x"], ["replay", "f", "--limit", "0"]]
)
def test_wrong_usage_is_exit_code_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    assert "usage: livewick" in capsys.readouterr().err


def test_replay_prints_one_json_object_and_nothing_else(candle_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["replay", str(candle_file), "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer.keys() == {"candles", "seconds", "score"}
    assert answer["candles"] == 120, "the missing second is filled"
    assert answer["score"]["baselines"].keys() >= {"majority", "repeat", "reverse", "markov", "linear", "persistence"}


def test_replay_of_minutes_as_seconds_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [f"{1_700_000_040_000 + minute * 60_000},1,1,1,1,1" for minute in range(3)]
    file = tmp_path / "minutes.csv"
    file.write_text("\n".join(["ts_ms,open,high,low,close,volume", *rows]))
    assert main(["replay", str(file), "--json"]) == 0
    assert "60 s apart" in capsys.readouterr().err


def test_replay_twice_gives_the_same_steps(
    candle_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = []
    for name in ("one.csv", "two.csv"):
        assert main(["replay", str(candle_file), "--limit", "100", "--steps", str(tmp_path / name)]) == 0
        with (tmp_path / name).open() as file:
            found = list(csv.DictReader(file))
        assert max(len(row["infer_ms"].partition(".")[2]) for row in found) <= 4, "rounded as live"
        rows.append([{**row, "infer_ms": "", "train_ms": ""} for row in found])
    assert rows[0] == rows[1]
    assert len(rows[0]) == 100
    assert [row["open_time"] for row in rows[0]] == sorted(row["open_time"] for row in rows[0])
    assert {row["trend_correct"] for row in rows[0]} <= {"true", "false", ""}
    assert {row["clipped"] for row in rows[0]} <= {"true", "false"}, "the words of /steps?format=csv"
    assert "verdict" in capsys.readouterr().out


@pytest.mark.parametrize(
    "content",
    [
        None,
        b"",
        b"\x00\xff",
        b"a,b\n1,2\n",
        b"ts_ms,open,high,low,close,volume\n1,x,1,1,1,1\n",
        b"ts_ms,open,high,low,close,volume\n1700000000000,1,1,1,1,1\n1700000000500,1,1,1,1,1\n",
    ],
)
def test_an_unreadable_candle_file_is_one_clear_line(
    content: bytes | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "bad.csv"
    if content is not None:
        file.write_bytes(content)
    assert main(["replay", str(file)]) in (1, 2)
    assert "bad.csv" in said(capsys)


def test_a_port_in_use_is_one_clear_line_and_nothing_half_started(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        monkeypatch.setenv("LIVEWICK_PORT", str(taken.getsockname()[1]))
        assert main(["serve"]) in (1, 2)
    assert "in use" in said(capsys)
    assert not list(tmp_path.glob("*.db*"))


def test_migrate_makes_a_database_that_export_reads(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["export", "--what", "steps", str(tmp_path / "steps.csv")]) == 1
    assert "livewick migrate" in said(capsys)
    assert main(["migrate"]) == 0
    assert main(["export", "--what", "steps", str(tmp_path / "steps.csv")]) == 0
    assert (tmp_path / "steps.csv").read_text().startswith("market,open_time")


@pytest.mark.parametrize("command", ["simulate", "replay"])
@pytest.mark.parametrize(
    ("rows", "line"),
    [
        ("5,1,1,1,1,1\n", 1),
        (f"{FILE_HEADER}1000,nan,1,1,1,1\n", 2),
        (f"{FILE_HEADER}1000,inf,inf,1,1,1\n", 2),
        (f"{FILE_HEADER}1000,1,1,1,1,-1\n", 2),
        (f"{FILE_HEADER}1000,1,0.5,1,1,1\n", 2),
        (f"{FILE_HEADER}2000,1,1,1,1,1\n1000,1,1,1,1,1\n", 3),
        (f"{FILE_HEADER}{'1' * 200_000},1,1,1,1,1\n", 2),
        (f"{FILE_HEADER}1000,1,1,1,1,1\n2500,1,1,1,1,1\n", None),
    ],
)
def test_simulate_reads_candle_files_by_the_rules_of_replay(
    command: str, rows: str, line: int | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "bad.csv"
    file.write_text(rows)
    arguments = ["simulate", "--port", "0", "--candles", str(file)] if command == "simulate" else ["replay", str(file)]
    assert main(arguments) == 2
    assert (f"{file}:{line}: " if line else f"{file}: ") in said(capsys)


def test_simulate_plays_what_export_wrote(tmp_path: Path) -> None:
    file = tmp_path / "out.csv"
    names = csv_cells.columns(Candle)
    file.write_text(",".join(names) + "\nsimulated:ETH/USDT,1000,1.0,2.0,1.0,1.5,3.0,live\n")
    assert read_file(file, "simulated:ETH/USDT", 1_000) == [Candle("simulated:ETH/USDT", 1_000, 1, 2, 1, 1.5, 3)]


def test_simulate_on_a_port_in_use_is_one_clear_line(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        assert main(["simulate", "--port", str(taken.getsockname()[1])]) == 2
    told = capsys.readouterr()
    assert "is in use by another program" in told.err
    assert told.err.count("\n") == 1
    assert told.out == "", "nothing tells where it listens"


def test_a_plan_nested_deeply_is_one_clear_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "plan.json").write_text("[" * 100_000)
    assert main(["simulate", "--port", "0", "--faults", str(tmp_path / "plan.json")]) == 2
    assert "nested too deeply" in said(capsys)


@pytest.mark.parametrize("command", ["export", "replay", "pretrain"])
@pytest.mark.parametrize(
    ("out", "why"),
    [
        ("folder", "no regular file"),
        ("pipe", "no regular file"),
        ("link", "no regular file"),
        ("behind/partial", "partial.partial is no regular file"),
        ("own.db", "is the database"),
        ("hard.db", "is the database"),
        ("own.db-wal", "-wal file"),
        ("own.db/x", "Not a directory"),
        ("x" * 300, "File name too long"),
    ],
)
def test_what_is_no_file_of_its_own_is_never_written_over(
    command: str, out: str, why: str, candle_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["migrate"]) == 0
    capsys.readouterr()
    for folder in ("folder", "behind", "behind/partial.partial"):
        (tmp_path / folder).mkdir()
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to(candle_file)
    (tmp_path / "hard.db").hardlink_to(tmp_path / "own.db")
    before = (tmp_path / "own.db").read_bytes(), candle_file.read_bytes()
    assert main(writing(command, candle_file, str(tmp_path / out))) == 1
    told = said(capsys)
    assert f"{out} cannot be written: " in told
    assert why in told
    assert ((tmp_path / "own.db").read_bytes(), candle_file.read_bytes()) == before
    assert (tmp_path / "link").is_symlink()


@pytest.mark.parametrize("command", ["replay", "pretrain"])
def test_a_command_does_not_write_over_its_own_input(
    command: str, candle_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = candle_file.read_bytes()
    (tmp_path / "folder").mkdir()
    assert main(writing(command, candle_file, str(tmp_path / "folder" / ".." / candle_file.name))) == 1
    assert "is the file to be read" in said(capsys)
    assert candle_file.read_bytes() == before


@pytest.mark.parametrize("command", ["export", "replay"])
def test_a_folder_that_is_not_there_is_one_clear_line(
    command: str, candle_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["migrate"]) == 0
    capsys.readouterr()
    assert main(writing(command, candle_file, "none/x.csv")) == 1
    assert "none/x.csv cannot be written: No such file or directory" in said(capsys)


def writing(command: str, candle_file: Path, out: str) -> list[str]:
    """Return the arguments with which a command writes ``out``."""
    return {
        "export": ["export", "--what", "candles", out],
        "replay": ["replay", str(candle_file), "--steps", out, "--json"],
        "pretrain": ["pretrain", str(candle_file), "--out", out],
    }[command]


@pytest.mark.parametrize("text", ["9223372036854775808", "99999999999999999999", "9" * 5_000])
@pytest.mark.parametrize("option", ["--start", "--end"])
def test_a_time_that_no_database_knows_is_wrong_usage(
    option: str, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["export", "--what", "steps", option, text, "x.csv"])
    assert ended.value.code == 2
    assert f"{option}: is above 9223372036854775807" in capsys.readouterr().err


def test_an_export_up_to_the_last_time_there_can_be(tmp_path: Path) -> None:
    assert main(["migrate"]) == 0
    assert main(["export", "--what", "steps", "--end", "9223372036854775807", str(tmp_path / "x.csv")]) == 0


def test_a_market_that_nobody_followed_is_one_clear_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["migrate"]) == 0
    capsys.readouterr()
    assert main(["export", "--what", "steps", "--market", "typo", str(tmp_path / "x.csv")]) == 1
    assert "no such market: typo" in said(capsys)
    assert not (tmp_path / "x.csv").exists()


def test_prices_at_the_ends_of_what_a_float_can_say_are_replayed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    prices = ("1e300", "1e-300", "5e-324")
    rows = [f"{1_700_000_000_000 + n * 1000},{','.join([prices[n % 3]] * 4)},1" for n in range(90)]
    (tmp_path / "ends.csv").write_text(FILE_HEADER + "\n".join(rows))
    assert main(["replay", str(tmp_path / "ends.csv"), "--json"]) == 0
    score = json.loads(capsys.readouterr().out)["score"]
    assert score["baselines"]["persistence"]["close_mae"] is None
    assert score["model"]["log_loss"] > 0


def test_debug_shows_where(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["--debug", "replay", str(tmp_path / "none.csv")]) in (1, 2)
    assert "Traceback" in capsys.readouterr().err


def test_what_pretrain_learned_a_replay_begins_with(
    candle_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "new folder" / "learned.ckpt"
    arguments = ["--epochs", "2", "--batch", "8", "--holdout", "0.2", "--out", str(out)]
    assert main(["pretrain", str(candle_file), *arguments]) == 0
    told = capsys.readouterr()
    assert "epoch 1: loss" in told.err
    assert str(out) in told.out

    scores = []
    for pretrained in ("", str(out)):
        monkeypatch.setenv("LIVEWICK_PRETRAINED", pretrained)
        assert main(["replay", str(candle_file), "--json"]) == 0
        scores.append(json.loads(capsys.readouterr().out)["score"])
    assert [score["candles"] for score in scores] == [119, 119], "scores begin anew"
    assert scores[1]["model"]["log_loss"] < scores[0]["model"]["log_loss"], "it had seen these candles before"


def test_a_pretrained_state_that_does_not_fit_is_one_clear_line(
    candle_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "bad.ckpt").write_bytes(b"nonsense")
    for name in ("bad.ckpt", "none.ckpt"):
        monkeypatch.setenv("LIVEWICK_PRETRAINED", str(tmp_path / name))
        assert main(["replay", str(candle_file)]) == 2
        assert "pretrained" in said(capsys).lower()


def test_pretraining_on_too_little_is_one_clear_line(candle_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["pretrain", str(candle_file), "--limit", "20"]) == 1
    assert "too few" in said(capsys)
