"""The engine from Python, without HTTP: vLLM's `LLM` for whoever has a list of prompts.

    from local_engine.llm import LLM, SamplingParams

    with LLM("smollm2-135m-instruct", dtype="float32") as llm:
        for answer in llm.generate(["Once upon", "In the end"], SamplingParams(temperature=0, max_tokens=16)):
            print(answer.outputs[0].text)

The core is a process as beneath the server, and requests go through the same code: same parameters, ranges, errors and numbers.
"""

from __future__ import annotations

import asyncio
import os
import threading
import uuid
import weakref
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, fields, replace
from types import TracebackType
from typing import Any, Self, TypeVar

import msgspec

from .async_engine import AsyncEngine
from .config import EngineConfig, ServerConfig
from .core_link import CORE_COMMAND
from .errors import ConfigError, EngineError, RequestError
from .generation import Delta, Generation, Usage, joined
from .sequence import FinishReason
from .server.requests import ChatRequest, CompletionRequest, parse
from .server.run import make_service
from .server.service import Service
from .token_logprobs import TokenLogprobs
from .weights.model_store import resolve_model

Prompt = str | list[int] | dict[str, Any]
"""A text, token ids, or vLLM's {"prompt": …} and {"prompt_token_ids": …}."""
Result = TypeVar("Result")

_OF_SERVER = ("chat_template", "generation_config", "core_timeout_s")
_NOT_SETTINGS = ("model", "data_parallel_rank")


class SamplingParams:
    """What a request asks, under the HTTP surface's names; what is left out is as there (`max_tokens` of a completion: 16)."""

    def __init__(self, **values: Any) -> None:
        self.values = values


@dataclass(frozen=True, slots=True)
class Logprob:
    logprob: float
    rank: int
    """1 for the best."""
    decoded_token: str


@dataclass(frozen=True, slots=True)
class CompletionOutput:
    index: int
    text: str
    token_ids: tuple[int, ...]
    finish_reason: str
    stop_reason: int | str | None
    logprobs: list[dict[int, Logprob]] | None
    """For each token the chosen one and its rivals; None where nobody asked."""


@dataclass(frozen=True, slots=True)
class RequestOutput:
    request_id: str
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    usage: Usage
    prompt: str | None = None
    """The text that was given; None for token ids and conversations."""


class LLM:
    """One model in processes of its own, until `close`, the end of a `with`, or that of the interpreter.

    Keyword arguments are `EngineConfig`'s, and `chat_template`, `generation_config` and `core_timeout_s`. Raises `EngineError`
    with the words that the server ends with. Thread-safe.
    """

    def __init__(self, model: str, *, core_command: Sequence[str] = CORE_COMMAND, **settings: Any) -> None:
        known = {each.name for each in fields(EngineConfig)} - set(_NOT_SETTINGS) | set(_OF_SERVER)
        if unknown := settings.keys() - known:
            raise ConfigError(f"LLM has no setting {', '.join(sorted(unknown))}; it has {', '.join(sorted(known))}")
        of_server = {name: settings.pop(name) for name in _OF_SERVER if name in settings}
        config, server = EngineConfig(model, **settings), ServerConfig(max_waiting=1 << 40, **of_server)
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
        self._service = make_service(config, server, resolve_model(model), core_command)
        self._loop = asyncio.new_event_loop()
        thread = threading.Thread(target=self._loop.run_forever, name="local-engine", daemon=True)
        thread.start()
        self.close: Callable[[], object] = weakref.finalize(self, _close, self._loop, thread, self._service.engine)
        """Ends the core and waits for it; requests in it fail."""
        try:
            self._run(self._start())
        except BaseException:
            self.close()
            raise

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        adapter: str | None = None,
    ) -> list[RequestOutput]:
        """Completes each prompt, all of them together, in their order. One set of parameters is for all of them. Raises
        `RequestError` when one cannot be served, `EngineError` when the model fails on one; the others are dropped."""
        each = _listed(prompts)
        bodies = [
            self._body(CompletionRequest, params, adapter, prompt=_prompt(prompt))
            for prompt, params in zip(each, _for_each(each, sampling_params), strict=True)
        ]
        answers = self._run(self._answer(self._service.start_completion, bodies))
        return [
            replace(answer, prompt=body.prompt if isinstance(body.prompt, str) else None)
            for answer, body in zip(answers, bodies, strict=True)
        ]

    def chat(
        self,
        messages: Sequence[dict[str, Any]] | Sequence[Sequence[dict[str, Any]]],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        adapter: str | None = None,
        **options: Any,
    ) -> list[RequestOutput]:
        """Answers one conversation, or several together. `options` are further fields of a chat request (`tools`,
        `chat_template_kwargs`, …); the answer is the model's own text."""
        each = [messages] if messages and isinstance(messages[0], dict) else list(messages)
        bodies = [
            self._body(ChatRequest, params, adapter, messages=list(conversation), **options)
            for conversation, params in zip(each, _for_each(each, sampling_params), strict=True)
        ]
        return self._run(self._answer(self._start_chat, bodies))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    async def _start(self) -> None:
        await self._service.engine.start(lambda _: None)
        self._service.core_is_ready()

    async def _start_chat(self, body: ChatRequest, request_id: str) -> Generation:
        generation, _ = await self._service.start_chat(body, request_id)
        return generation

    def _body(
        self, kind: type[CompletionRequest | ChatRequest], params: SamplingParams, adapter: str | None, **values: Any
    ) -> Any:
        asked = {"model": adapter or self._service.names[0], **params.values, **values}
        return parse(msgspec.json.encode(asked), kind)

    async def _answer(
        self, start: Callable[[Any, str], Coroutine[Any, Any, Generation]], bodies: Sequence[Any]
    ) -> list[RequestOutput]:
        generations: list[Generation] = []
        try:
            for body in bodies:
                generations.append(await start(body, uuid.uuid4().hex))
            return [await _finished(self._service, each) for each in generations]
        finally:
            for generation in generations:
                if not generation.ended.is_set():
                    self._service.engine.abort(generation)

    def _run(self, work: Coroutine[Any, Any, Result]) -> Result:
        if self._loop.is_closed():
            work.close()
            raise EngineError("this LLM was closed: make a new one")
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()


async def _finished(service: Service, generation: Generation) -> RequestOutput:
    """Raises `EngineError` when the model failed on it."""
    news: list[list[Delta]] = [[] for _ in generation.choices]
    while deltas := await generation.next():
        for delta in deltas:
            if delta.error is not None:
                raise (RequestError if delta.finish_reason is FinishReason.REFUSED else EngineError)(delta.error)
            news[delta.index].append(delta)
    if generation.error is not None:
        raise EngineError(generation.error)
    outputs = [_output(service, joined(each)) for each in news]
    request = generation.request
    return RequestOutput(request.request_id, request.prompts[0], outputs, generation.usage)


def _output(service: Service, delta: Delta) -> CompletionOutput:
    assert delta.finish_reason is not None
    told = [_logprobs(service, each) for each in delta.logprobs] or None
    return CompletionOutput(delta.index, delta.text, delta.tokens, delta.finish_reason, delta.stop_reason, told)


def _logprobs(service: Service, told: TokenLogprobs) -> dict[int, Logprob]:
    ranks = [told.rank, *range(1, len(told.ids))]
    return {
        token: Logprob(value, rank, service.tokenizer.bytes_of(token).decode("utf-8", errors="replace"))
        for token, value, rank in zip(told.ids, told.values, ranks, strict=True)
    }


def _close(loop: asyncio.AbstractEventLoop, thread: threading.Thread, engine: AsyncEngine) -> None:
    asyncio.run_coroutine_threadsafe(engine.stop(), loop).result()
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


def _listed(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    if isinstance(prompts, str | dict):
        return [prompts]
    listed: list[Any] = list(prompts)
    return [listed] if listed and all(isinstance(item, int) for item in listed) else listed


def _prompt(prompt: Prompt) -> str | list[int]:
    if isinstance(prompt, dict):
        found: str | list[int] | None = prompt.get("prompt_token_ids", prompt.get("prompt"))
        if found is None:
            raise ConfigError("a prompt that is a dict has `prompt` or `prompt_token_ids`")
        return found
    return prompt


def _for_each(
    each: Sequence[object], params: SamplingParams | Sequence[SamplingParams] | None
) -> Sequence[SamplingParams]:
    if params is None or isinstance(params, SamplingParams):
        return [params or SamplingParams()] * len(each)
    if len(params) != len(each):
        raise ConfigError(
            f"{len(each)} prompts with {len(params)} sets of sampling parameters: give one, or one for each"
        )
    return params
