"""`metergate doctor`: looks at everything a gateway depends on, and says of each what is wrong and what to do.

Nothing is changed: no migration runs, no engine starts, no paid call is made (a provider is asked for its list of models).
"""

from __future__ import annotations

import asyncio
import platform
import shutil
import sys
from collections.abc import Awaitable, Callable, Iterable, Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import httpx

from gateway import compiled, doctor_database
from gateway.doctor_finding import Check, Health, fail, ok, warn
from gateway.metering.inspect import state, trouble
from gateway.metering.segments import process_folders
from gateway.routing.provider import Provider
from gateway.serve.engines import bundled
from gateway.serve.errors import StartError
from gateway.serve.preflight import MIN_FREE_BYTES, check_engine_installed
from gateway.settings import Settings, SettingsError, WebhookSettings, load_resolvable, redact_url
from gateway.webhooks.addresses import ForbiddenAddress, resolve
from gateway.words import counted

TIMEOUT_S: Final = 10
OLDEST_REDIS: Final = (6, 2)


async def examine(config: Path | None, url: str | None = None) -> list[Check]:
    """All checks, in the order a person would want to read them. A check that breaks is a finding, and so is a secret that is
    not where the configuration says: what needs it is not looked at. Raises `SettingsError` for what else is wrong there.

    `url` is where a gateway must answer; without one it may, where the configuration says it listens.
    """
    settings, lacking = load_resolvable(config)
    checks = [
        _python(),
        _request_path(),
        *_configuration(settings, config, lacking.values()),
        _home(settings.home),
        journal(settings.home / "journal"),
    ]
    checks.append(await _guarded("gateway", lambda: _gateway(settings, url)))
    if ("database_url",) not in lacking:
        checks.append(await _guarded("database", lambda: doctor_database.schema(settings)))
        if checks[-1].health is Health.OK:
            checks.append(await _guarded("books", lambda: doctor_database.books(settings)))
            checks.append(await _guarded("prices", lambda: doctor_database.prices(settings)))
            checks.append(await _guarded("audit", lambda: doctor_database.audit(settings)))
    if ("redis_url",) not in lacking:
        checks.append(await _guarded("redis", lambda: _redis(settings)))
    if settings.webhook.url is not None:
        checks.append(await _guarded("webhook", lambda: _webhook(settings.webhook)))
    remote = [
        _guarded(f"provider {name}", lambda name=name: _remote_provider(name, settings))  # type: ignore[misc]
        for name, provider in settings.providers.items()
        if provider.base_url is not None and not any(path[:2] == ("providers", name) for path in lacking)
    ]
    checks += await asyncio.gather(*remote)
    for name in bundled(settings):
        checks.append(await _guarded(f"engine {name}", lambda name=name: _bundled_engine(name, settings)))  # type: ignore[misc]
    checks += _models(settings)
    checks.append(await _guarded("gpu", _gpu))
    return checks


async def _guarded(name: str, check: Callable[[], Awaitable[Check]]) -> Check:
    try:
        async with asyncio.timeout(6 * TIMEOUT_S):
            return await check()
    except Exception as error:
        return fail(name, f"{type(error).__name__}: {' '.join(str(error).split())}", "see the message")


def _python() -> Check:
    found = f"Python {platform.python_version()} on {platform.system()} {platform.machine()}"
    try:
        return ok("metergate", f"{version('metergate')}, {found}")
    except PackageNotFoundError:
        return warn("metergate", f"not installed as a package, {found}", "pip install metergate, or use `make run`")


def _request_path() -> Check:
    if compiled.is_active():
        return ok(
            "request path", f"{len(compiled.MODULES)} modules of it run compiled, in gateways started since they are"
        )
    return ok("request path", "interpreted; `metergate compile` makes a request cheaper (it needs a C compiler)")


def _configuration(settings: Settings, config: Path | None, lacking: Iterable[SettingsError]) -> Iterator[Check]:
    for error in lacking:
        remedy = "give it to the gateway, which does not start without; what needs it is not looked at here"
        yield fail("configuration", str(error), remedy)
    found = (counted(len(settings.providers), "provider"), counted(len(settings.models), "model"))
    origin = "the built-in default (no --config and no METERGATE_CONFIG)" if config is None else str(config)
    detail = f"{', '.join(found)}, listens on {settings.listen}; from {origin}"
    if settings.models:
        yield ok("configuration", detail)
    else:
        yield warn("configuration", detail, "add a model with a route, or no caller can ask for anything")


def _home(home: Path) -> Check:
    if not home.is_dir():
        return warn("home", f"{home} does not exist yet", "`metergate serve` makes it")
    probe = home / ".doctor-probe"
    try:
        probe.write_bytes(b"")
        probe.unlink()
    except OSError as error:
        return fail("home", f"{home}: {error.strerror}", "make it writable, or set METERGATE_HOME to a folder that is")
    free = shutil.disk_usage(home).free
    detail = f"{home} is writable, {free >> 20} MB free"
    if free < MIN_FREE_BYTES:
        return fail("home", detail, "free some disk, or set METERGATE_HOME to another one")
    if free < 1 << 30:
        return warn("home", detail, "the journal refuses requests when the disk is full; free some in time")
    return ok("home", detail)


def journal(folder: Path) -> Check:
    """What dead processes left and nobody can ship: hard budgets and prepaid wallets answer 503 while there is any."""
    found = {each: state(each) for each in process_folders(folder)}
    names = {
        kind: [each.name for each, its in found.items() if its == kind] for kind in ("unreadable", "given-up", "orphan")
    }
    if unreadable := names["unreadable"]:
        return fail(
            "journal",
            f"{unreadable[0]} cannot be read ({trouble(folder / unreadable[0])}); budgets and prepaid wallets wait for it",
            "put right what it says, or run the release that wrote it; where it is lost, `metergate journal give-up "
            f"{unreadable[0]}`",
        )
    if given_up := names["given-up"]:
        return warn(
            "journal",
            f"{len(given_up)} given up, {given_up[0]} among them: what it holds is not in the books",
            "`metergate journal give-up --undo` once it can be read",
        )
    return ok("journal", f"{len(found)} under {folder}, {len(names['orphan'])} of them wait for a gateway's start")


async def _gateway(settings: Settings, url: str | None) -> Check:
    """Whether one runs, and is ready."""
    host, _, port = (settings.admin_listen or settings.listen).rpartition(":")
    host = {"0.0.0.0": "127.0.0.1", "[::]": "[::1]"}.get(host, host)
    base = (url or f"http://{host}:{port}").rstrip("/")
    try:
        async with httpx.AsyncClient(timeout=TIMEOUT_S, follow_redirects=False, trust_env=False) as client:
            answer = await client.get(f"{base}/health/ready")
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        if url is None:
            return ok("gateway", f"none runs at {base}; start one with `metergate serve`")
        return fail(
            "gateway", f"{base}: {str(error) or type(error).__name__}", "start it, or set METERGATE_URL to where it is"
        )
    if answer.is_success:
        return ok("gateway", f"{base} is ready")
    if answer.status_code == 503 and "reasons" in answer.text:
        return warn("gateway", f"{base} is not ready", "; ".join(answer.json()["reasons"]))
    return fail("gateway", f"{base} answered {answer.status_code}", "something else answers there: set METERGATE_URL")


async def _webhook(webhook: WebhookSettings) -> Check:
    """Where events would go. Nothing is sent."""
    assert webhook.url is not None
    parts = urlsplit(webhook.url)
    host = parts.hostname or ""
    try:
        address = await resolve(host, parts.port or (443 if parts.scheme == "https" else 80), webhook.allowed())
    except ForbiddenAddress as error:
        return fail("webhook", str(error), "set webhook.networks, or another webhook.url")
    except OSError as error:
        return fail("webhook", f"{host} has no address: {error}", "put webhook.url right")
    return ok("webhook", f"events go to {host} ({address})")


async def _redis(settings: Settings) -> Check:
    if settings.redis_url is None:
        return ok("redis", "not configured: limits are kept in this process's memory")
    from redis.asyncio import Redis

    url = redact_url(settings.redis_url)
    client = Redis.from_url(settings.redis_url, socket_timeout=TIMEOUT_S, socket_connect_timeout=TIMEOUT_S)
    try:
        facts = await client.info()
        policy = facts.get("maxmemory_policy", "noeviction")
    except Exception as error:
        return fail("redis", f"{url}: {error}", f"start it; until then limits are {settings.limits.when_store_down}")
    finally:
        await client.aclose()
    detail = f"{url}, version {facts.get('redis_version')}, {policy}"
    if tuple(map(int, str(facts.get("redis_version")).split(".")[:2])) < OLDEST_REDIS:
        return fail("redis", detail, "use Redis 6.2 or later, or Valkey: limits need HRANDFIELD")
    if policy != "noeviction":
        return warn("redis", detail, "set maxmemory-policy noeviction: an evicted counter is a limit forgotten")
    return ok("redis", detail)


async def _remote_provider(name: str, settings: Settings) -> Check:
    provider = Provider(name, settings.providers[name])
    title = f"provider {name}"
    try:
        async with httpx.AsyncClient(timeout=TIMEOUT_S, follow_redirects=False) as client:
            answer = await client.get(provider.url("/models"), headers=provider.headers)
    except httpx.HTTPError as error:
        return fail(title, f"{provider.base_url}: {type(error).__name__}", "check the base_url and the network")
    finally:
        await provider.aclose()
    detail = f"{provider.base_url} answered {answer.status_code}"
    if answer.status_code in (401, 403):
        return fail(title, detail, "check its api_key")
    if answer.is_success:
        return ok(title, detail)
    return warn(title, f"{detail} to GET /models", "check the base_url (it usually ends with /v1)")


async def _bundled_engine(name: str, settings: Settings) -> Check:
    title = f"engine {name}"
    try:
        check_engine_installed(name)
    except StartError as error:
        return fail(title, "not installed", str(error))
    model = settings.providers[name].model
    assert model is not None
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        "import sys; from local_engine.weights.model_store import resolve_model; print(resolve_model(sys.argv[1]))",
        model,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    output, errors = await process.communicate()
    if process.returncode == 0:
        return ok(title, f"{model}: {output.decode().strip()}")
    said = errors.decode(errors="replace").strip().splitlines() or ["no message"]
    return fail(title, f"{model}: {said[-1]}", "name a folder, a .gguf file or a known model")


def _models(settings: Settings) -> Iterator[Check]:
    for model in settings.models:
        routes = ", ".join(f"{route.provider}/{route.model}" for route in model.routes)
        if model.context_window is None:
            remedy = "set context_window, so that callers see it and over-long prompts are refused early"
            yield warn(f"model {model.name}", f"{routes}; no context_window", remedy)
        else:
            yield ok(f"model {model.name}", f"{routes}; {model.context_window} tokens")


async def _gpu() -> Check:
    program = shutil.which("nvidia-smi")
    if program is None:
        return ok("gpu", "no NVIDIA driver found: bundled engines run on the CPU")
    process = await asyncio.create_subprocess_exec(
        program,
        "--query-gpu=name,memory.total,driver_version",
        "--format=csv,noheader",
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    output, _ = await process.communicate()
    said = "; ".join(output.decode(errors="replace").split("\n")).strip("; ")
    if process.returncode != 0:
        return warn("gpu", said, "the driver does not answer: bundled engines would run on the CPU")
    return ok("gpu", said)
