"""The command line as a whole: every verb loads, and a mistake is one line with what to do."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from click import Command, Group
from click.testing import CliRunner

from gateway.admin.roles import ADMIN, RULES
from gateway.cli import COMMANDS, cli
from gateway.database import wanted_revision

ROOT = Path(__file__).resolve().parents[3]


def metergate(*arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "gateway.cli", *arguments],
        cwd=ROOT,
        env=environ,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


@pytest.mark.parametrize("name", COMMANDS)
def test_every_verb_explains_itself(name: str) -> None:
    result = CliRunner().invoke(cli, [name, "--help"])
    assert result.exit_code == 0, result.output
    assert "Usage:" in result.output


def test_every_subcommand_has_a_help_text() -> None:
    for name in COMMANDS:
        command = cli.get_command(None, name)  # type: ignore[arg-type]
        for each in command.commands.values() if isinstance(command, Group) else [command]:
            assert each is not None
            assert each.help, f"{name} {each.name}"


def test_help_imports_no_verb() -> None:
    script = (
        "import sys\n"
        "from gateway.cli import cli\n"
        "cli.get_help(cli.make_context('metergate', ['--help'], resilient_parsing=True))\n"
        "loaded = [name for name, module in sys.modules.items() if module is not None]\n"
        "print([name for name in loaded if name.startswith(('litestar', 'sqlalchemy', 'httpx', 'rich'))])\n"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_without_an_admin_key_the_message_says_where_it_is_looked_for(tmp_path: Path) -> None:
    done = metergate("team", "list", METERGATE_HOME=str(tmp_path))
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr == (
        "metergate: no admin key: set METERGATE_ADMIN_KEY, or METERGATE_HOME to the gateway's folder "
        f"({tmp_path}/admin-key: No such file or directory)\n"
    )


def test_without_a_gateway_the_message_says_how_to_start_one() -> None:
    done = metergate("team", "list", "--url", "http://127.0.0.1:1", METERGATE_ADMIN_KEY="k" * 20)
    assert done.returncode == 1
    assert done.stderr.startswith("metergate: no gateway answers at http://127.0.0.1:1 (")
    assert "start one with `metergate serve`" in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_wrong_configuration_is_one_line_with_its_place(tmp_path: Path) -> None:
    config = tmp_path / "metergate.yaml"
    config.write_text("journal:\n  fsinc: batched\n")
    done = metergate("doctor", "--config", str(config), METERGATE_HOME=str(tmp_path))
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert f"{config}" in done.stderr
    assert "fsinc" in done.stderr


def test_db_upgrade_makes_a_database_that_db_check_accepts(tmp_path: Path) -> None:
    home = {"METERGATE_HOME": str(tmp_path / "var")}
    before = metergate("db", "check", **home)
    assert before.returncode == 1
    assert "run `metergate db upgrade`" in before.stderr
    upgraded = metergate("db", "upgrade", **home)
    assert upgraded.returncode == 0, upgraded.stderr
    assert metergate("db", "upgrade", **home).returncode == 0
    assert metergate("db", "check", **home).returncode == 0


def test_db_check_tells_machines_what_it_found(tmp_path: Path) -> None:
    home = {"METERGATE_HOME": str(tmp_path / "var")}
    before = metergate("db", "check", "--json", **home)
    assert before.returncode == 1
    missing = json.loads(before.stdout)
    assert (missing["current"], missing["wanted"], missing["usable"]) == (None, wanted_revision(), False)
    assert "run `metergate db upgrade`" in missing["advice"]
    upgraded = json.loads(metergate("db", "upgrade", "--json", **home).stdout)
    after = metergate("db", "check", "--json", **home)
    assert after.returncode == 0
    assert json.loads(after.stdout) == upgraded
    assert (upgraded["current"], upgraded["usable"], upgraded["advice"]) == (wanted_revision(), True, "")


def test_a_database_that_is_away_is_one_line_without_its_password() -> None:
    url = "postgresql://someone:s3cret@127.0.0.1:1/books"
    done = metergate("db", "check", METERGATE_DATABASE_URL=url)
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert "s3cret" not in done.stderr
    assert "127.0.0.1:1/books" in done.stderr


def test_terms_ask_for_exactly_one_payer_and_one_rate() -> None:
    result = CliRunner().invoke(cli, ["terms", "post", "USD", "CNY", "--rate", "1"])
    assert result.exit_code == 2
    assert "name exactly one of --team and --provider" in result.output


CALLS = {"get": "GET", "text": "GET", "pages": "GET", "pieces": "GET", "post": "POST", "patch": "PATCH"}


def calls(file: Path) -> Iterator[str]:
    """What a file asks the admin API for, as `METHOD /path` with `{}` in the place of every parameter."""
    tree = ast.parse(file.read_text())
    named = {
        target.id: node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name) and target.id == "path"
    }
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr in CALLS
            and node.args
        ):
            path = node.args[0]
            if isinstance(path, ast.Name):
                path = named.get(path.id, path)
            if isinstance(path, ast.JoinedStr):
                parts = (each.value if isinstance(each, ast.Constant) else "{}" for each in path.values)
                yield f"{CALLS[node.func.attr]} {''.join(map(str, parts))}"
            elif isinstance(path, ast.Constant) and isinstance(path.value, str):
                yield f"{CALLS[node.func.attr]} {path.value}"


def test_every_route_of_the_admin_api_has_a_verb() -> None:
    asked = {call for file in (ROOT / "gateway" / "cli").glob("*.py") for call in calls(file)}
    routes = {re.sub(r"\{\w+\}", "{}", route).replace(ADMIN, "") for route in RULES if ADMIN in route}
    assert routes - asked == set()
    assert {call for call in asked if call.partition(" ")[2].startswith("/")} - routes == set()


def walk(name: str, command: Command) -> Iterator[tuple[str, Command]]:
    if isinstance(command, Group):
        for each in command.commands.values():
            yield from walk(f"{name} {each.name}", each)
    else:
        yield name, command


def test_every_verb_that_tells_something_has_json_for_machines() -> None:
    silent = {
        path
        for name in COMMANDS
        if (command := cli.get_command(None, name)) is not None  # type: ignore[arg-type]
        for path, each in walk(name, command)
        if not any("--json" in parameter.opts for parameter in each.params)
    }
    assert silent == {"serve", "engine serve", "engine plan", "engine quantize", "import litellm"}


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_shells_complete_verbs_and_options(shell: str) -> None:
    environ = {"PATH": os.environ["PATH"], "_METERGATE_COMPLETE": f"{shell}_source"}
    assert "_METERGATE_COMPLETE" in completed(environ)
    environ["_METERGATE_COMPLETE"] = f"{shell}_complete"
    for words, wanted in (
        ("metergate bud", "budget"),
        ("metergate budget ", "create"),
        ("metergate key edit --max", "--max-parallel"),
    ):
        last = words.rpartition(" ")[2]
        place = {"COMP_WORDS": words, "COMP_CWORD": last if shell == "fish" else str(words.count(" "))}
        assert wanted in completed({**environ, **place}), f"{shell}: {words}"


def completed(environ: dict[str, str]) -> str:
    script = "from gateway.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, env=environ, capture_output=True, text=True, check=False
    )
    return done.stdout
