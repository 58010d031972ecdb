"""The HTTP process from start to end: bind, load, serve, drain."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.metadata
import logging
import math
import os
import re
import signal
import socket
import sys
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from pathlib import Path

import uvicorn

from ..async_engine import AsyncEngine
from ..chat_template import ChatTemplate
from ..config import EngineConfig, ServerConfig
from ..core_link import CORE_COMMAND
from ..errors import ConfigError, ModelError
from ..metrics import EngineMetrics
from ..parent_watch import exit_with_parent
from ..tokenizer import Tokenizer, load_tokenizer
from .app import EngineApp
from .embeddings import pooling_of
from .service import Service, now_s

log = logging.getLogger(__name__)

DEAD_STATUS = 3
PROGRESS_EVERY_S = 1.0
_NUMBERS = re.compile("[0-9]+")
CLOSE_S = 5
"""After the last request, connections get so long to close."""


class _Uvicorn(uvicorn.Server):
    """Uvicorn without its signal handlers: who stops what, and when, is decided here."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def serve(
    engine_config: EngineConfig,
    settings: ServerConfig,
    model_path: Path,
    *,
    core_command: Sequence[str] = CORE_COMMAND,
) -> int:
    """Serves until a signal, the parent's end or the core's death; returns the exit status. Raises `EngineError` at start."""
    if settings.parent_fd is not None:
        exit_with_parent(settings.parent_fd)
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    listener = _listen(settings)
    return _run(_serve(make_service(engine_config, settings, model_path, core_command), listener))


def make_service(
    engine_config: EngineConfig, settings: ServerConfig, model_path: Path, core_command: Sequence[str]
) -> Service:
    """With an engine that is not started yet. Raises `EngineError`."""
    tokenizer = load_tokenizer(model_path)
    names = settings.served_model_names or (_default_name(engine_config.model),)
    engine = AsyncEngine(
        engine_config,
        tokenizer,
        EngineMetrics(names[0]),
        max_waiting=settings.max_waiting,
        core_timeout_s=settings.core_timeout_s,
        command=core_command,
    )
    return Service(
        engine=engine,
        tokenizer=tokenizer,
        template=_template(settings, tokenizer),
        names=names,
        settings=settings,
        created_s=now_s(),
        version=_version(),
        adapters=dict(engine_config.lora_modules),
        pooling=pooling_of(model_path) or ("last" if settings.convert == "embed" else None),
    )


def _run(main: Coroutine[None, None, int]) -> int:
    try:
        import uvloop
    except ImportError:
        return asyncio.run(main)
    return uvloop.run(main)


async def _serve(service: Service, listener: socket.socket) -> int:
    engine, settings = service.engine, service.settings
    server = _Uvicorn(
        uvicorn.Config(
            EngineApp(service),
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=CLOSE_S,
        )
    )
    stop = asyncio.Event()
    _on_signals(stop, service)
    engine.on_death = lambda _: stop.set()
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    _write_port(settings, listener)
    try:
        if await _load(service, stop):
            say(f"ready: {', '.join(service.names)} at http://{settings.host}:{listener.getsockname()[1]}/v1")
            await stop.wait()
            if engine.dead is None:
                say("draining")
                await engine.drain(settings.drain_s)
        return 0 if engine.dead is None else DEAD_STATUS
    finally:
        server.should_exit = True
        await serving
        await engine.stop()


async def _load(service: Service, stop: asyncio.Event) -> bool:
    """True when the model is ready, False when asked to stop meanwhile. Raises `ModelError` when it cannot be loaded."""
    loading = asyncio.create_task(service.engine.start(_Sparing(say)))
    stopping = asyncio.create_task(stop.wait())
    await asyncio.wait({loading, stopping}, return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    if not loading.done():
        loading.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await loading
        return False
    ready = loading.result()
    service.core_is_ready()
    say(
        f"loaded in {ready.load_us / 1e6:.1f} s: {ready.num_blocks} KV blocks of {ready.block_size} tokens, "
        f"context {ready.max_model_len}"
    )
    return True


def _on_signals(stop: asyncio.Event, service: Service) -> None:
    """The first signal drains; the second aborts what is still running."""

    def stop_or_hurry() -> None:
        if stop.is_set():
            service.engine.abort_all()
        stop.set()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop_or_hurry)


def _listen(settings: ServerConfig) -> socket.socket:
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    listener = socket.socket(family)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((settings.host, settings.port))
        listener.listen(1024)
    except OSError as error:
        listener.close()
        raise ConfigError(
            f"cannot listen on {settings.host}:{settings.port}: {error.strerror}; choose another --host or --port"
        ) from error
    return listener


def _write_port(settings: ServerConfig, listener: socket.socket) -> None:
    """Whole or not at all: a reader never sees half a number."""
    if settings.port_file is None:
        return
    target = Path(settings.port_file)
    draft = target.with_name(target.name + ".tmp")
    try:
        draft.write_text(f"{listener.getsockname()[1]}\n")
        draft.replace(target)
    except OSError as error:
        raise ConfigError(f"cannot write --port-file {target}: {error.strerror}") from error


def _template(settings: ServerConfig, tokenizer: Tokenizer) -> ChatTemplate | None:
    source = tokenizer.chat_template
    given = settings.chat_template
    if given is not None:
        if "{" in given or "\n" in given:
            source = given
        else:
            try:
                source = Path(given).read_text(encoding="utf-8")
            except OSError as error:
                raise ConfigError(f"cannot read --chat-template {given}: {error.strerror}") from error
    return ChatTemplate(source, tokenizer.special) if source is not None else None


def _default_name(model: str) -> str:
    """vLLM serves a model under what was asked for; for a .gguf file that is its stem."""
    path = Path(model)
    return path.stem if path.suffix == ".gguf" else path.name if path.is_dir() else model


def _version() -> str:
    try:
        return importlib.metadata.version("metergate")
    except importlib.metadata.PackageNotFoundError:
        raise ModelError("metergate is not installed: run `pip install metergate[engine]`") from None


class _Sparing:
    """Passes at most one line a second of the same progress on (`weights 3/30`, `4/30`, …); news comes at once."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        self._tell = tell
        self._last_s = -math.inf
        self._kind = ""

    def __call__(self, text: str) -> None:
        now_s = time.monotonic()
        kind = _NUMBERS.sub("", text)
        if kind != self._kind or now_s - self._last_s >= PROGRESS_EVERY_S:
            self._last_s = now_s
            self._kind = kind
            self._tell(text)


def say(text: str) -> None:
    """One line for whoever started us."""
    print(f"local_engine: {text}", file=sys.stderr, flush=True)
