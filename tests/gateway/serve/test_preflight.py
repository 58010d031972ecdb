"""What keeps the product from starting is said in one line that names the remedy."""

from __future__ import annotations

import socket
from collections import namedtuple
from pathlib import Path

import pytest

from gateway.serve import preflight
from gateway.serve.errors import StartError
from gateway.settings import load_settings

Usage = namedtuple("Usage", "total used free")


def test_a_port_in_use_names_the_next_one() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(StartError, match=f"^port {port} on 127.0.0.1 is in use; .*--port {port + 1}$"):
            preflight.bind("127.0.0.1", port)


def test_port_zero_picks_a_free_one() -> None:
    with preflight.bind("127.0.0.1", 0) as listener:
        assert listener.getsockname()[1] > 0


def test_an_address_of_another_machine_is_named() -> None:
    with pytest.raises(StartError, match=r"192\.0\.2\.1 is no address of this machine"):
        preflight.bind("192.0.2.1", 8000)


def test_a_home_that_is_a_file_or_below_one_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("")
    with pytest.raises(StartError, match="is a file, not a folder"):
        preflight.prepare_home(file)
    with pytest.raises(StartError, match="cannot write to .*set METERGATE_HOME"):
        preflight.prepare_home(file / "var")


def test_a_full_disk_is_refused_with_the_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda _: Usage(1 << 40, 1 << 40, 5 << 20))
    with pytest.raises(StartError, match="only 5 MB of disk free .* and 64 MB are needed"):
        preflight.prepare_home(tmp_path)


def test_a_home_is_private_and_left_clean(tmp_path: Path) -> None:
    home = tmp_path / "a" / "var"
    preflight.prepare_home(home)
    assert home.stat().st_mode & 0o777 == 0o700
    assert list(home.iterdir()) == []


def test_two_processes_cannot_share_one_home(tmp_path: Path) -> None:
    with (
        preflight.lock_home(tmp_path),
        pytest.raises(StartError, match=r"another metergate serve \(process \d+\) runs on"),
    ):
        preflight.lock_home(tmp_path)
    preflight.lock_home(tmp_path).close()


def test_more_workers_ask_for_postgresql_and_redis(tmp_path: Path) -> None:
    alone = load_settings(None, {"METERGATE_HOME": str(tmp_path)})
    preflight.check_workers(1, alone)
    with pytest.raises(StartError, match=r"needs PostgreSQL \(database_url\) and Redis or Valkey \(redis_url\)"):
        preflight.check_workers(2, alone)
    with pytest.raises(StartError, match="--workers must be 1 or more"):
        preflight.check_workers(0, alone)
    both = load_settings(
        None,
        {
            "METERGATE_HOME": str(tmp_path),
            "METERGATE_DATABASE_URL": "postgresql://a@b/c",
            "METERGATE_REDIS_URL": "redis://d",
        },
    )
    preflight.check_workers(2, both)
