"""`metergate statement`: a team's months, drafted, issued, printed and credited."""

from __future__ import annotations

from pathlib import Path

import click

from gateway.cli.admin_client import AdminClient, Json
from gateway.cli.output import admin_options, print_object, print_rows

COLUMNS = (
    "id",
    "kind",
    "state",
    "number",
    "month",
    "settled",
    "payable",
    "credited",
    "saving",
    "issued_at",
    "credited_by",
)
LINE_COLUMNS = (
    "position",
    "kind",
    "month",
    "model",
    "token_class",
    "quantity",
    "unit_price",
    "list",
    "policy",
    "settled",
    "saving_percent",
    "payable",
)
JOURNAL_COLUMNS = ("journal", "watermark", "complete", "updated_at")


@click.group()
def statement() -> None:
    """Monthly statements: draft, issue, print, credit."""


@statement.command("draft")
@click.argument("team_id")
@click.argument("month")
@admin_options
def statement_draft(team_id: str, month: str, url: str, as_json: bool) -> None:
    """Draft a month, or draft it again from what the books hold now: `statement draft team_… 2026-11`."""
    with AdminClient(url) as client:
        _show(client.post(f"/statements/{team_id}", {"month": month}), as_json)


@statement.command("list")
@click.argument("team_id")
@click.option("--month", help="Only this month, such as 2026-11.")
@admin_options
def statement_list(team_id: str, month: str | None, url: str, as_json: bool) -> None:
    """A team's drafts, statements and credit notes."""
    with AdminClient(url) as client:
        print_rows(client.pages(f"/statements/{team_id}", {"month": month}), COLUMNS, as_json)


@statement.command("show")
@click.argument("team_id")
@click.argument("statement_id", type=int)
@click.option(
    "--format", "form", type=click.Choice(["table", "csv", "focus", "html"]), default="table", show_default=True
)
@click.option("--output", type=click.Path(dir_okay=False, writable=True, path_type=Path), help="Write to this file.")
@admin_options
def statement_show(team_id: str, statement_id: int, form: str, output: Path | None, url: str, as_json: bool) -> None:
    """One statement: as a table here, as CSV, as FOCUS 1.2 rows, or as a page to print."""
    path = f"/statements/{team_id}/{statement_id}"
    with AdminClient(url) as client:
        if form == "table":
            if output is not None:
                raise click.UsageError("--output needs --format csv, focus or html")
            _show(client.get(path), as_json)
            return
        text = client.text(path, {"format": form})
    if output is None:
        click.echo(text, nl=False)
    else:
        output.write_text(text, encoding="utf-8", newline="")


@statement.command("issue")
@click.argument("team_id")
@click.argument("statement_id", type=int)
@click.option("--without-journal", "journals", multiple=True, help="Give up this journal; again for more.")
@click.option("--without-set-aside", is_flag=True, help="Issue although requests of the month are dead letters.")
@admin_options
def statement_issue(
    team_id: str, statement_id: int, journals: tuple[str, ...], without_set_aside: bool, url: str, as_json: bool
) -> None:
    """Issue a draft: numbered and hashed, it never changes again."""
    body = {"without_journals": list(journals), "without_set_aside": without_set_aside}
    with AdminClient(url) as client:
        _show(client.post(f"/statements/{team_id}/{statement_id}/issue", body), as_json)


@statement.command("credit")
@click.argument("team_id")
@click.argument("statement_id", type=int)
@click.argument("reason")
@click.option("--line", "lines", type=int, multiple=True, help="Credit what is left of the line there; again for more.")
@click.option("--amount", help="Credit this much of it, in its currency.")
@admin_options
def statement_credit(
    team_id: str, statement_id: int, reason: str, lines: tuple[int, ...], amount: str | None, url: str, as_json: bool
) -> None:
    """Credit an issued statement: lines of it, an amount, or the whole, after which its month may be stated again."""
    body = {"reason": reason, "lines": list(lines), "amount": amount}
    with AdminClient(url) as client:
        _show(client.post(f"/statements/{team_id}/{statement_id}/credit-note", body), as_json)


@statement.command("discard")
@click.argument("team_id")
@click.argument("statement_id", type=int)
@admin_options
def statement_discard(team_id: str, statement_id: int, url: str, as_json: bool) -> None:
    """Throw a draft away."""
    with AdminClient(url) as client:
        print_object(client.post(f"/statements/{team_id}/{statement_id}/discard", {}), as_json)


@statement.command("journals")
@admin_options
def statement_journals(url: str, as_json: bool) -> None:
    """How far the journals are: a month can be issued when all are past its end."""
    with AdminClient(url) as client:
        answer = client.get("/statements")
    if as_json:
        print_object(answer, as_json)
        return
    print_rows(answer["data"], JOURNAL_COLUMNS, as_json)
    if answer["broken"]:
        click.echo(
            f"issued documents that do not follow from their predecessors: {', '.join(answer['broken'])}", err=True
        )


def _show(view: Json, as_json: bool) -> None:
    if as_json:
        print_object(view, as_json)
        return
    print_object({name: view[name] for name in COLUMNS}, as_json)
    if not view["document"]["lines"]:
        click.echo(f"no request of this team stands in {view['month']}")
        return
    print_rows(view["document"]["lines"], LINE_COLUMNS, as_json)
