from __future__ import annotations

import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from gateway.access.admin_key import load_admin_key
from gateway.access.pepper import Pepper, PepperError, load_pepper
from gateway.settings import Settings, SettingsError, load_settings


def settings(home: Path, **environ: str) -> Settings:
    return load_settings(None, {"METERGATE_HOME": str(home), **environ})


def test_rule_32a_the_pepper_is_made_once_and_only_its_owner_reads_it(tmp_path: Path) -> None:
    home = tmp_path / "var"
    first = load_pepper(settings(home))
    assert len(first.value) == 64
    assert stat.S_IMODE((home / "key-pepper").stat().st_mode) == 0o600
    assert load_pepper(settings(home)).value == first.value
    assert [path.name for path in home.iterdir()] == ["key-pepper"]


def test_rule_32a_the_environment_gives_the_pepper_and_no_file_is_made(tmp_path: Path) -> None:
    pepper = load_pepper(settings(tmp_path, METERGATE_KEY_PEPPER="pepper-from-the-environment"))
    assert pepper.value == b"pepper-from-the-environment"
    assert list(tmp_path.iterdir()) == []


def test_parallel_first_starts_agree_on_one_pepper(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        peppers = list(pool.map(lambda _: load_pepper(settings(tmp_path / "var")).value, range(16)))
    assert len(set(peppers)) == 1


def test_rule_32a_another_pepper_than_the_databases_is_refused() -> None:
    mine, other = Pepper(b"a" * 32, "var/key-pepper"), Pepper(b"b" * 32, "elsewhere")
    mine.check(mine.fingerprint)
    with pytest.raises(
        PepperError, match="from var/key-pepper is not the one .* put the original key-pepper file back"
    ):
        mine.check(other.fingerprint)


def test_a_pepper_that_everybody_can_read_is_refused_with_the_remedy(tmp_path: Path) -> None:
    (tmp_path / "key-pepper").write_text("x" * 32)
    (tmp_path / "key-pepper").chmod(0o644)
    with pytest.raises(PepperError, match=r"run: chmod 600 .*key-pepper"):
        load_pepper(settings(tmp_path))


def test_a_short_pepper_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PepperError, match="METERGATE_KEY_PEPPER is shorter than 16"):
        load_pepper(settings(tmp_path, METERGATE_KEY_PEPPER="short"))


def test_a_home_that_is_a_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "var").write_text("")
    with pytest.raises(PepperError, match="point METERGATE_HOME at a writable folder"):
        load_pepper(settings(tmp_path / "var"))


def test_rule_27_a_pepper_does_not_print() -> None:
    assert repr(Pepper(b"hidden-hidden-hidden", "var/key-pepper")) == "Pepper(***, var/key-pepper)"


def test_the_admin_key_is_made_once_and_compares_whole(tmp_path: Path) -> None:
    first, second = load_admin_key(settings(tmp_path)), load_admin_key(settings(tmp_path))
    assert (first.created, second.created) == (True, False)
    assert first.secret == second.secret
    assert stat.S_IMODE((tmp_path / "admin-key").stat().st_mode) == 0o600
    text = first.secret.reveal()
    assert second.matches(text.encode())
    assert not second.matches(text[:-1].encode())
    assert text not in repr(first)


def test_the_environments_admin_key_is_the_admin_key(tmp_path: Path) -> None:
    key = load_admin_key(settings(tmp_path, METERGATE_ADMIN_KEY="an-admin-key-of-mine"))
    assert key.matches(b"an-admin-key-of-mine")
    assert not key.created
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(SettingsError, match="METERGATE_ADMIN_KEY is shorter than 16"):
        load_admin_key(settings(tmp_path, METERGATE_ADMIN_KEY="admin"))
