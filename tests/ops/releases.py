"""Other releases of ours, as source trees: the one before the newest migration, and one that comes after this."""

from __future__ import annotations

import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from gateway.database import wanted_revision

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("billing", "gateway", "migrations", "tests")
NEXT = """\
\"\"\"What a later release may add.\"\"\"

import sqlalchemy as sa
from alembic import op

revision, down_revision, branch_labels, depends_on = "{next}", "{newest}", None, None


def upgrade() -> None:
    for table in ("usage", "usage_lines", "attempts", "rollup_traffic", "rollup_money", "teams", "api_keys"):
        op.add_column(table, sa.Column("later", sa.Text))
        op.add_column(table, sa.Column("later_count", sa.BigInteger, server_default="0", nullable=False))
    op.create_index("ix_usage_lines_later", "usage_lines", ["later"])
    op.create_table("later", sa.Column("name", sa.Text, primary_key=True))
"""


def previous(folder: Path) -> Path:
    """The release before the newest migration came, out of the history. Skips where there is none."""

    def git(*arguments: str) -> bytes:
        done = subprocess.run(["git", "-C", str(ROOT), *arguments], capture_output=True, check=False)
        if done.returncode:
            pytest.skip(f"no history here: {done.stderr.decode(errors='replace').strip()[:200]}")
        return done.stdout

    newest = git("log", "-1", "--format=%H", "--diff-filter=A", "--", f"migrations/versions/{wanted_revision()}_*.py")
    if not newest.strip():
        pytest.skip("the newest migration is not committed, or older than this clone's history")
    tree = git("archive", f"{newest.decode().strip()}^")
    with tarfile.open(fileobj=io.BytesIO(tree)) as archive:
        archive.extractall(folder, filter="data")
    return folder


def following(folder: Path) -> Path:
    """This release with one more migration, which adds to the tables that every request touches."""
    for package in PACKAGES:
        shutil.copytree(ROOT / package, folder / package, ignore=shutil.ignore_patterns("__pycache__"))
    newest = wanted_revision()
    number = f"{int(newest) + 1:04d}"
    file = folder / "migrations" / "versions" / f"{number}_later.py"
    file.write_text(NEXT.format(next=number, newest=newest))
    return folder


def migrate(release: Path, config: dict[str, object], home: Path) -> None:
    """`metergate db upgrade` of that release."""
    home.mkdir(parents=True, exist_ok=True)
    file = home / "migrate.yaml"
    file.write_text(json.dumps(config))
    environment = {name: value for name, value in os.environ.items() if not name.startswith("METERGATE_")}
    done = subprocess.run(
        [sys.executable, "-m", "gateway.cli", "db", "upgrade", "--config", str(file)],
        cwd=release, env=environment | {"METERGATE_HOME": str(home)}, capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


def may_run_on_a_newer_schema(release: Path) -> bool:
    """Releases before the schema had a floor serve on, and do not start again."""
    return "schema_floor" in (release / "gateway" / "database.py").read_text()
