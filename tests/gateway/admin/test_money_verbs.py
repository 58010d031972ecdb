"""The verbs of the shell over a real socket, as an operator types them: each says what it did, and warns of slips."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import litestar
import pytest
import uvicorn
from click.testing import CliRunner, Result

from gateway.cli import cli
from tests.gateway.admin.conftest import ADMIN_KEY, Gateway, Operator
from tests.gateway.admin.test_statements import used
from tests.gateway.rates.server import good, http, serving

Shell = Callable[..., Awaitable[Result]]


@pytest.fixture
def database_url(sqlite_url: str) -> str:
    return sqlite_url


@pytest.fixture
async def shell(app: litestar.Litestar) -> AsyncIterator[Shell]:
    listener = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(app, log_level="warning", lifespan="off"))
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    environ = {
        "METERGATE_ADMIN_KEY": ADMIN_KEY,
        "METERGATE_URL": f"http://127.0.0.1:{listener.getsockname()[1]}",
        "COLUMNS": "300",
    }

    async def run(*words: object, code: int = 0) -> Result:
        result = await asyncio.to_thread(CliRunner().invoke, cli, [str(word) for word in words], env=environ)
        assert result.exit_code == code, f"{words}: {result.output} {result.exception!r}"
        return result

    yield run
    server.should_exit = True
    await serving


async def said(shell: Shell, *words: object) -> Any:
    return json.loads((await shell(*words, "--json")).stdout)


async def test_prices_say_which_are_in_force_and_warn_of_slips(
    gateway: Gateway, operator: Operator, shell: Shell
) -> None:
    post = ("price", "post", "deepseek", "deepseek-chat", "output")
    first = await shell(*post, "4.2", "USD", "--from", "2026-11-01T00:00:00Z")
    assert "warning" not in first.output
    again = await shell(*post, "0.42", "USD", "--from", "2026-11-01T00:00:00Z", code=1)
    assert "supersede" in str(again.exception)
    await shell(*post, "0.42", "USD", "--from", "2026-11-01T00:00:00Z", "--supersede")
    listed = (await shell("price", "list", "--provider", "deepseek")).stdout.splitlines()
    assert [line.split()[0] for line in listed] == ["in_force", "no", "yes"]
    slip = await shell("price", "post", "deepseek", "deepsek-chat", "output", "1", "USD")
    assert slip.stderr.startswith("warning: model: no route of the list 'deepseek' asks for 'deepsek-chat'")


async def test_a_key_for_a_model_that_nobody_serves_is_warned_of(operator: Operator, shell: Shell) -> None:
    result = await shell("key", "create", await operator.team(), "ci", "--model", "no-such")
    assert result.stderr == "warning: models: no model 'no-such' is configured; there is deepseek-chat\n"
    assert "sk-mg-" in result.stdout


async def test_a_month_is_rated_again_stated_and_credited_in_part(
    gateway: Gateway, operator: Operator, shell: Shell
) -> None:
    team = await used(gateway, operator)
    span = ("--start", "2026-09-01T00:00:00Z", "--end", "2026-10-01T00:00:00Z")
    await shell("price", "post", "deepseek", "deepseek-chat", "output", "0.84", "USD", "--from", "2026-09-02T00:00:00Z")
    seen = await said(shell, "usage", "rerate", *span)
    assert (seen["changed"], seen["data"][0]["difference"][0]["amount"]) == (1, "4.2")
    assert seen["plan"] in (await shell("usage", "rerate", *span)).stdout
    await shell("usage", "rerate", *span, "--apply", seen["plan"], code=2)
    done = await said(shell, "usage", "rerate", *span, "--apply", seen["plan"], "--reason", "wrong price")
    assert done["corrected"] == 1
    (wallet,) = await said(shell, "wallet", "list")
    assert (wallet["team_id"], wallet["balance"]) == (team, "-8.4")

    draft = await said(shell, "statement", "draft", team, "2026-09")
    await shell("statement", "issue", team, draft["id"])
    note = await said(shell, "statement", "credit", team, draft["id"], "outage", "--amount", "0.2")
    assert (note["kind"], note["payable"]["amount"]) == ("partial_credit_note", "-0.2")
    over = await shell("statement", "credit", team, draft["id"], "outage", "--line", "1", code=1)
    assert "more than the" in str(over.exception)
    assert "credited" in (await shell("statement", "list", team)).stdout
    assert "no request of this team stands in 2020-01" in (await shell("statement", "draft", team, "2020-01")).stdout
    wrong = await shell("statement", "draft", team, "November", code=1)
    assert "month: write a month such as 2026-11" in str(wrong.exception)


async def test_feeds_are_fetched_and_a_refused_one_is_an_exit_code(gateway: Gateway, shell: Shell) -> None:
    async with serving(http("200 OK", good()), http("200 OK", b"<html>")) as feed:
        gateway.settings.rates.feeds[:] = [feed]
        assert [row["added"] for row in await said(shell, "rate", "fetch")] == [1]
        refused = await shell("rate", "fetch", "--feed", "f", code=1)
        assert "no object of base" in refused.stdout
        gateway.settings.rates.feeds.clear()
    assert "none is configured" in str((await shell("rate", "fetch", code=1)).exception)
