"""`metergate key`: who may call, from where, which models and how much."""

from __future__ import annotations

import click

from gateway.cli.admin_client import AdminClient, Json
from gateway.cli.output import admin_options, print_object, print_rows
from gateway.cli.parse import given, model_limits, tags

KEY_COLUMNS = ("id", "name", "team_id", "public_id", "models", "limits", "expires_at", "revoked_at", "created_at")
LIMITS = ("requests_per_minute", "tokens_per_minute", "max_parallel")
MODEL_LIMIT_HELP = "MODEL:LIMIT=N,…, such as gpt-4.1:requests_per_minute=60,max_parallel=4; again for more models."


class Bound(click.ParamType[object]):
    """A whole number, or `none` for no limit."""

    name = "number"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> object:
        if value == "none" or isinstance(value, int):
            return value
        if not str(value).isascii() or not str(value).isdigit():
            self.fail(f"{value!r} is no whole number, nor `none`", param, ctx)
        return int(str(value))


@click.group()
def key() -> None:
    """Team keys."""


@key.command("create")
@click.argument("team_id")
@click.argument("name")
@click.option("--model", "models", multiple=True, help="A model the key may call; again for more. Default: any.")
@click.option("--requests-per-minute", type=int)
@click.option("--tokens-per-minute", type=int)
@click.option("--max-parallel", type=int)
@click.option("--allow-ip", "allowed_ips", multiple=True, help="A network the key may be used from; again for more.")
@click.option("--expires-at", help="RFC 3339 time after which the key stops.")
@click.option("--tag", "tag_pairs", multiple=True, help="NAME=VALUE, put on every usage row; again for more.")
@click.option("--model-limit", "model_limit_texts", multiple=True, help=MODEL_LIMIT_HELP)
@admin_options
def key_create(
    team_id: str,
    name: str,
    models: tuple[str, ...],
    requests_per_minute: int | None,
    tokens_per_minute: int | None,
    max_parallel: int | None,
    allowed_ips: tuple[str, ...],
    expires_at: str | None,
    tag_pairs: tuple[str, ...],
    model_limit_texts: tuple[str, ...],
    url: str,
    as_json: bool,
) -> None:
    """Make a key. It is shown now and never again."""
    limits = given(
        requests_per_minute=requests_per_minute, tokens_per_minute=tokens_per_minute, max_parallel=max_parallel
    )
    body = given(
        team_id=team_id,
        name=name,
        models=list(models) or None,
        limits=limits or None,
        model_limits=model_limits(model_limit_texts),
        allowed_ips=list(allowed_ips) or None,
        expires_at=expires_at,
        tags=tags(tag_pairs),
    )
    with AdminClient(url) as client:
        answer = client.post("/keys", body)
    print_object(answer if as_json else {name: answer[name] for name in answer if name != "warnings"}, as_json)
    for warning in answer["warnings"]:
        click.echo(f"warning: {warning}", err=True)


@key.command("list")
@click.option("--team", "team_id", help="Only this team's.")
@admin_options
def key_list(team_id: str | None, url: str, as_json: bool) -> None:
    """All keys, without their secrets."""
    with AdminClient(url) as client:
        print_rows(client.pages("/keys", {"team_id": team_id}), KEY_COLUMNS, as_json)


@key.command("show")
@click.argument("key_id")
@admin_options
def key_show(key_id: str, url: str, as_json: bool) -> None:
    """One key, without its secret."""
    with AdminClient(url) as client:
        print_object(client.get(f"/keys/{key_id}"), as_json)


@key.command("edit")
@click.argument("key_id")
@click.option("--name")
@click.option("--model", "models", multiple=True, help="A model the key may call; again for more; `any` for all.")
@click.option("--requests-per-minute", type=Bound(), help="A number, or `none`.")
@click.option("--tokens-per-minute", type=Bound(), help="A number, or `none`.")
@click.option("--max-parallel", type=Bound(), help="A number, or `none`.")
@click.option("--allow-ip", "allowed_ips", multiple=True, help="A network; again for more; `any` for all.")
@click.option("--expires-at", help="RFC 3339 time, or `none`.")
@click.option("--tag", "tag_pairs", multiple=True, help="NAME=VALUE; all tags are replaced by those named.")
@click.option("--model-limit", "model_limit_texts", multiple=True, help=MODEL_LIMIT_HELP)
@admin_options
def key_edit(
    key_id: str,
    name: str | None,
    models: tuple[str, ...],
    requests_per_minute: object,
    tokens_per_minute: object,
    max_parallel: object,
    allowed_ips: tuple[str, ...],
    expires_at: str | None,
    tag_pairs: tuple[str, ...],
    model_limit_texts: tuple[str, ...],
    url: str,
    as_json: bool,
) -> None:
    """Change what is named and nothing else: a limit that is not named stays."""
    body = given(name=name, tags=tags(tag_pairs), model_limits=model_limits(model_limit_texts))
    for field, chosen in (("models", models), ("allowed_ips", allowed_ips)):
        if chosen:
            body[field] = None if chosen == ("any",) else list(chosen)
    if expires_at is not None:
        body["expires_at"] = None if expires_at == "none" else expires_at
    bounds = given(
        requests_per_minute=requests_per_minute, tokens_per_minute=tokens_per_minute, max_parallel=max_parallel
    )
    with AdminClient(url) as client:
        if bounds:
            standing: Json = client.get(f"/keys/{key_id}")["limits"]
            named = {limit: None if bound == "none" else bound for limit, bound in bounds.items()}
            body["limits"] = {limit: standing[limit] for limit in LIMITS} | named
        print_object(client.patch(f"/keys/{key_id}", body), as_json)


@key.command("revoke")
@click.argument("key_id")
@admin_options
def key_revoke(key_id: str, url: str, as_json: bool) -> None:
    """Stop a key for good, within a second everywhere."""
    with AdminClient(url) as client:
        print_object(client.post(f"/keys/{key_id}/revoke", {}), as_json)


@key.command("rotate")
@click.argument("key_id")
@click.option(
    "--grace-seconds", type=click.IntRange(min=0), help="How long the former secret still works (default: a day)."
)
@admin_options
def key_rotate(key_id: str, grace_seconds: int | None, url: str, as_json: bool) -> None:
    """Give a key a new secret, shown now and never again. Its id, limits and history stay."""
    with AdminClient(url) as client:
        print_object(client.post(f"/keys/{key_id}/rotate", given(grace_period_s=grace_seconds)), as_json)
