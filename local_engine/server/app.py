"""The ASGI application: which path is answered by what."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from prometheus_client import CONTENT_TYPE_LATEST

from ..async_engine import EARLY_ABORT_KEPT_S
from ..errors import RequestError
from .answers import Answer
from .embeddings import Vectors
from .http import CallerGone, HttpError, Receive, Request, Scope, Send, error_body, http_error
from .logprobs import LogprobWords
from .requests import (
    Body,
    ChatRequest,
    CompletionRequest,
    DetokenizeRequest,
    EmbeddingRequest,
    LoadAdapterRequest,
    TokenizeRequest,
    UnloadAdapterRequest,
    parse,
)
from .sampling import check_token_ids
from .service import Service, usage_body
from .surfaces import ChatSurface, CompletionSurface

log = logging.getLogger(__name__)

SMALL_BODY = 1 << 16
"""Bytes below which parsing on the event loop is cheaper than a thread."""

Handler = Callable[[Request], Awaitable[None]]


class EngineApp:
    """Routes by exact path. Paths under /v1 and those that cost work ask for the key, if there is one."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._open: dict[str, dict[str, Handler]] = {
            "/health": {"GET": self._health},
            "/ping": {"GET": self._health, "POST": self._health},
            "/version": {"GET": self._version},
            "/metrics": {"GET": self._metrics},
            "/load": {"GET": self._load},
        }
        self._keyed: dict[str, dict[str, Handler]] = {
            "/v1/models": {"GET": self._models},
            "/v1/chat/completions": {"POST": self._chat},
            "/v1/completions": {"POST": self._completions},
            "/v1/embeddings": {"POST": self._embeddings},
            "/v1/load_lora_adapter": {"POST": self._load_adapter},
            "/v1/unload_lora_adapter": {"POST": self._unload_adapter},
            "/tokenize": {"POST": self._tokenize},
            "/detokenize": {"POST": self._detokenize},
            "/reset_prefix_cache": {"POST": self._reset_prefix_cache},
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        request = Request(scope, receive, send)
        try:
            await self._find(request)(request)
        except CallerGone:
            return
        except Exception as error:
            await self._fail(request, error)

    async def _fail(self, request: Request, error: Exception) -> None:
        failure = http_error(error)
        if failure.status >= 500 and failure is not error:
            log.error("%s %s: %s", request.method, request.path, error, exc_info=failure.status == 500)
        if not request.started:
            await request.respond_json(error_body(failure), failure.status, failure.headers)

    def _find(self, request: Request) -> Handler:
        path = request.path
        if path in self._open:
            methods = self._open[path]
        else:
            self._service.check_key(request.headers)
            methods = self._keyed.get(path) or self._by_pattern(path)
        handler = methods.get(request.method)
        if handler is None and methods:
            allowed = ", ".join(methods)
            raise HttpError(
                405, f"{path} answers {allowed}, not {request.method}.", headers=[(b"allow", allowed.encode())]
            )
        if handler is None:
            raise HttpError(404, f"There is nothing at {request.method} {path}.", code="not_found")
        return handler

    def _by_pattern(self, path: str) -> dict[str, Handler]:
        if path.startswith("/v1/models/"):
            return {"GET": self._model}
        if path.startswith("/v1/requests/") and path.endswith("/cancel"):
            return {"POST": self._cancel}
        return {}

    async def _health(self, request: Request) -> None:
        engine = self._service.engine
        if engine.dead is not None:
            await request.respond_json({"status": "dead", "detail": engine.dead}, 503)
        elif engine.draining:
            await request.respond_json({"status": "draining", "requests": engine.live_count}, 503)
        elif self._service.parameters is None:
            await request.respond_json({"status": "loading", "detail": engine.progress}, 503)
        elif engine.trouble is not None:
            await request.respond_json({"status": "unresponsive", "detail": engine.trouble}, 503)
        else:
            await request.respond_json({"status": "ok"})

    async def _version(self, request: Request) -> None:
        await request.respond_json({"version": self._service.version})

    async def _metrics(self, request: Request) -> None:
        await request.respond(200, self._service.engine.metrics.render(), CONTENT_TYPE_LATEST.encode())

    async def _load(self, request: Request) -> None:
        await request.respond_json({"server_load": self._service.engine.live_count})

    async def _models(self, request: Request) -> None:
        await request.respond_json(
            {"object": "list", "data": [self._card(name) for name in (*self._service.names, *self._service.adapters)]}
        )

    async def _model(self, request: Request) -> None:
        name = request.path.removeprefix("/v1/models/")
        self._service.check_model(name)
        await request.respond_json(self._card(name))

    def _card(self, name: str) -> dict[str, object]:
        return {
            "id": name,
            "object": "model",
            "created": self._service.created_s,
            "owned_by": "metergate",
            "root": self._service.adapters.get(name, self._service.engine.config.model),
            "parent": self._service.names[0] if name in self._service.adapters else None,
            "max_model_len": self._service.require_ready().max_model_len,
        }

    async def _chat(self, request: Request) -> None:
        body = await self._parsed(request, ChatRequest)
        generation, new_reply = await self._service.start_chat(body, request.id)
        surface = ChatSurface(self._words(body), new_reply, logprobs=body.logprobs)
        answer = Answer(self._service, request, generation, surface, body.model)
        await answer.send(body.stream_options, streamed=body.stream)

    async def _completions(self, request: Request) -> None:
        body = await self._parsed(request, CompletionRequest)
        generation = await self._service.start_completion(body, request.id)
        tokenizer = self._service.tokenizer
        prompts = generation.request.prompts
        echo = await asyncio.to_thread(lambda: [tokenizer.decode(prompt) for prompt in prompts]) if body.echo else []
        surface = CompletionSurface(self._words(body), generation, echo, logprobs=body.logprobs is not None)
        answer = Answer(self._service, request, generation, surface, body.model)
        await answer.send(body.stream_options, streamed=body.stream)

    async def _embeddings(self, request: Request) -> None:
        body = await self._parsed(request, EmbeddingRequest)
        generation = await self._service.start_embedding(body, request.id)
        await Vectors(self._service, request, generation, body).send()

    def _words(self, body: ChatRequest | CompletionRequest) -> LogprobWords:
        return LogprobWords(self._service.tokenizer, as_ids=body.return_tokens_as_token_ids)

    async def _tokenize(self, request: Request) -> None:
        body = await self._parsed(request, TokenizeRequest)
        self._service.check_model(body.model)
        if (body.prompt is None) == (body.messages is None):
            raise RequestError("Send either prompt or messages.", param="prompt")
        if body.prompt is not None:
            text, special = body.prompt, body.add_special_tokens is not False
        else:
            text, special = await self._service.rendered(body), body.add_special_tokens is True
        tokens = await self._service.encode(text, add_special_tokens=special)
        answer: dict[str, object] = {
            "count": len(tokens),
            "max_model_len": self._service.require_ready().max_model_len,
            "tokens": tokens,
        }
        if body.return_token_strs:
            spell = self._service.tokenizer.token
            answer["token_strs"] = await asyncio.to_thread(lambda: [spell(token) for token in tokens])
        await request.respond_json(answer)

    async def _detokenize(self, request: Request) -> None:
        body = await self._parsed(request, DetokenizeRequest)
        self._service.check_model(body.model)
        tokenizer, tokens = self._service.tokenizer, body.tokens
        if tokens:
            check_token_ids(tokens, tokenizer.vocab_size, "tokens")
        text = await asyncio.to_thread(tokenizer.decode, tokens, skip_special_tokens=False)
        await request.respond_json({"prompt": text})

    async def _reset_prefix_cache(self, request: Request) -> None:
        self._service.require_ready()
        self._service.engine.reset_prefix_cache()
        await request.respond_json({"status": "reset"})

    async def _load_adapter(self, request: Request) -> None:
        body = await self._parsed(request, LoadAdapterRequest)
        await self._service.load_adapter(body)
        await request.respond_json({"status": "loaded", "adapter": body.lora_name})

    async def _unload_adapter(self, request: Request) -> None:
        body = await self._parsed(request, UnloadAdapterRequest)
        await self._service.unload_adapter(body)
        await request.respond_json({"status": "unloaded", "adapter": body.lora_name})

    async def _cancel(self, request: Request) -> None:
        await self._body(request)
        request_id = request.path.removeprefix("/v1/requests/").removesuffix("/cancel")
        found = await self._service.cancel(request_id)
        if found is None:
            raise HttpError(
                404,
                f"No request with id {request_id!r} is running or ended within the last 10 minutes; should it come within "
                f"{EARLY_ABORT_KEPT_S} seconds, it ends at once.",
                param="id",
                code="request_not_found",
            )
        await request.respond_json({"id": request_id, "status": found.status, "usage": usage_body(found.usage)})

    async def _parsed(self, request: Request, kind: type[Body]) -> Body:
        """Large bodies are read beside the event loop: streams go on."""
        data = await self._body(request)
        return parse(data, kind) if len(data) <= SMALL_BODY else await asyncio.to_thread(parse, data, kind)

    async def _body(self, request: Request) -> bytes:
        return await request.body(self._service.settings.max_request_bytes)
