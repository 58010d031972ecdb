"""The `metergate` command. Each verb's module is imported when it is asked for, so that `--help` and small verbs stay quick."""

from __future__ import annotations

import importlib
import sys
from typing import Final

import click

COMMANDS: Final = {
    "serve": ("gateway.cli.serve", "Serve the gateway, with its bundled engines."),
    "engine": ("gateway.cli.engine", "The engine alone: serve one model over OpenAI's API."),
    "db": ("gateway.cli.db", "Upgrade the database, or check it."),
    "compile": ("gateway.cli.compiling:compiling", "Compile the path of a request: the same answers for less CPU."),
    "doctor": ("gateway.cli.doctor", "Diagnose configuration, database, Redis, providers, model files and GPU."),
    "journal": ("gateway.cli.journal", "Look into the journal, or ship it again."),
    "reconcile": ("gateway.cli.reconcile", "The books against themselves, and against a provider's account."),
    "team": ("gateway.cli.catalog", "Teams."),
    "key": ("gateway.cli.keys", "Team keys."),
    "price": ("gateway.cli.prices", "The price book."),
    "rate": ("gateway.cli.money", "Exchange rates."),
    "terms": ("gateway.cli.money", "Settlement terms."),
    "budget": ("gateway.cli.catalog", "Budgets."),
    "wallet": ("gateway.cli.wallets", "Wallets: balances, payments, codes, adjustments."),
    "statement": ("gateway.cli.statements", "Monthly statements: draft, issue, print, credit."),
    "token": ("gateway.cli.operators", "Role tokens: who may use the admin API and the dashboard."),
    "audit": ("gateway.cli.operators", "The audit log: list it, verify its chain."),
    "routes": ("gateway.cli.operators", "The routes of every model, with their live health."),
    "import": ("gateway.cli.importing:importing", "Move from another gateway."),
    "usage": ("gateway.cli.usage", "What was used and what it cost."),
}


class LazyGroup(click.Group):
    """A group whose commands live in `COMMANDS`."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in COMMANDS:
            return None
        module, _, attribute = COMMANDS[name][0].partition(":")
        command = getattr(importlib.import_module(module), attribute or name)
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="metergate", message="metergate %(version)s")
def cli() -> None:
    """One OpenAI-compatible endpoint in front of every model a company uses, with exact money and hard budgets."""


def main() -> None:
    """The console script. A mistake of ours may show a traceback; one of configuration or surroundings is one line."""
    from gateway.cli.errors import expected_errors

    try:
        ending = cli.main(prog_name="metergate", standalone_mode=False)  # of a verb that ends by `Exit` its status
    except click.exceptions.Abort:
        sys.exit(130)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except BrokenPipeError:
        sys.exit(141)
    except Exception as error:
        if not isinstance(error, expected_errors()):
            raise
        click.echo(f"metergate: {' '.join(str(error).split())}", err=True)
        sys.exit(1)
    sys.exit(ending)
