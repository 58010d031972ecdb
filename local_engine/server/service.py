"""What the endpoints need: the engine, the text side of the model, and how a request becomes a generation."""

from __future__ import annotations

import asyncio
import functools
import hashlib
import hmac
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Literal

import msgspec

from ..async_engine import AsyncEngine, FinishedUsage
from ..chat_template import ChatTemplate
from ..config import ServerConfig
from ..deep_threads import deep_threads
from ..errors import EngineDead, Overloaded, RequestError
from ..generation import Generation, GenerationRequest, Usage
from ..messages import LoadAdapter, UnloadAdapter
from ..sampling_params import SamplingParams
from ..tokenizer import Tokenizer
from .http import HttpError, is_request_id
from .reasoning import CLOSE, Reasoning, ReasoningParser, reasoning_after
from .replies import Reply
from .requests import (
    ChatRequest,
    CompletionRequest,
    EmbeddingRequest,
    LoadAdapterRequest,
    NamedTool,
    TokenizeRequest,
    UnloadAdapterRequest,
    are_integers,
)
from .sampling import (
    DEFAULT_COMPLETION_TOKENS,
    ParameterBuilder,
    chat_output_tokens,
    check_batch,
    completion_output_tokens,
)
from .structure import after_reasoning, grammar_of, wants_structure
from .tool_calls import ToolParser
from .tool_parsers.forced import NamedParser, RequiredParser
from .tool_parsers.registry import keeps_special_tokens, new_tool_parser

SMALL_TEXT = 4_096
"""Characters below which tokenising on the event loop is cheaper than a thread."""
MANY_MESSAGES = 64


@functools.cache
def _checkers() -> ThreadPoolExecutor:
    return deep_threads(2, "grammar-check")


@dataclass(slots=True)
class Service:
    """One served model. `parameters` is set once the core has said what fits."""

    engine: AsyncEngine
    tokenizer: Tokenizer
    template: ChatTemplate | None
    names: tuple[str, ...]
    settings: ServerConfig
    created_s: int
    version: str
    adapters: dict[str, str] = field(default_factory=dict)
    """The folder of each adapter, by the name that callers use for a model."""
    pooling: Literal["last", "mean"] | None = None
    """How an embedding comes of a prompt; None where the model makes none."""
    parameters: ParameterBuilder | None = None

    def core_is_ready(self) -> None:
        """Builds what depends on the loaded model."""
        ready = self.engine.ready
        assert ready is not None
        config = self.engine.config
        self.parameters = ParameterBuilder(
            max_model_len=ready.max_model_len,
            vocab_size=ready.vocab_size,
            eos_token_ids=self.tokenizer.special.eos_ids,
            defaults=self.tokenizer.sampling_defaults if self.settings.generation_config == "auto" else {},
            seed=config.seed,
            priorities=config.scheduling_policy == "priority",
            max_logprobs=config.max_logprobs,
            encode=lambda text: self.tokenizer.encode(text, add_special_tokens=False),
        )

    def require_ready(self) -> ParameterBuilder:
        if self.engine.dead is not None:
            raise EngineDead(self.engine.dead)
        if self.parameters is None:
            raise Overloaded(f"The model is still loading ({self.engine.progress}).", retry_after_s=2)
        return self.parameters

    def check_model(self, name: str | None) -> None:
        if name is not None and name not in self.names and name not in self.adapters:
            raise HttpError(
                404,
                f"The model `{name}` does not exist; this engine serves {', '.join((*self.names, *self.adapters))}.",
                param="model",
                code="model_not_found",
            )

    async def load_adapter(self, body: LoadAdapterRequest) -> None:
        self._check_updating()
        if body.lora_name in (*self.names, *self.adapters):
            raise RequestError(f"The name {body.lora_name!r} is taken: unload that adapter first.", param="lora_name")
        error = await self.engine.change_adapters(
            LoadAdapter(body.lora_name, body.lora_path), undo=UnloadAdapter(body.lora_name)
        )
        if error is not None:
            raise RequestError(error, param="lora_path")
        self.adapters[body.lora_name] = body.lora_path

    async def unload_adapter(self, body: UnloadAdapterRequest) -> None:
        self._check_updating()
        folder = self.adapters.pop(body.lora_name, None)  # from here on nobody new is sent to it
        if folder is None:
            raise HttpError(404, f"There is no adapter {body.lora_name!r}.", param="lora_name", code="model_not_found")
        error = await self.engine.change_adapters(
            UnloadAdapter(body.lora_name), undo=LoadAdapter(body.lora_name, folder)
        )
        if error is not None:
            self.adapters[body.lora_name] = folder
            raise RequestError(error, param="lora_name")

    def _check_updating(self) -> None:
        self.require_ready()
        if not self.engine.config.allow_runtime_lora_updating:
            raise HttpError(
                403, "Adapters are fixed here: start the engine with --enable-lora --allow-runtime-lora-updating."
            )

    def check_key(self, headers: Mapping[bytes, bytes]) -> None:
        """Raises 401 when a key is configured and the caller's is another; compared in constant time."""
        if self.settings.api_key is None:
            return
        scheme, _, given = headers.get(b"authorization", b"").partition(b" ")
        fits = hmac.compare_digest(given.strip(), self.settings.api_key.encode())
        if scheme.lower() != b"bearer" or not fits:
            raise HttpError(401, "Incorrect API key provided.", kind="authentication_error", code="invalid_api_key")

    async def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        if len(text) <= SMALL_TEXT:
            return self.tokenizer.encode(text, add_special_tokens=add_special_tokens)
        return await asyncio.to_thread(self.tokenizer.encode, text, add_special_tokens=add_special_tokens)

    def render(self, body: ChatRequest | TokenizeRequest) -> str:
        """The prompt's text. Raises `RequestError` with the template's own words."""
        if self.template is None:
            raise RequestError(
                "This model has no chat template: use /v1/completions, or start the engine with --chat-template.",
                param="messages",
            )
        if not body.messages:
            raise RequestError("messages must hold at least one message.", param="messages")
        return self.template.render(
            body.messages,
            add_generation_prompt=body.add_generation_prompt and not body.continue_final_message,
            continue_final_message=body.continue_final_message,
            tools=_tools(body),
            extra=body.chat_template_kwargs,
        )

    async def rendered(self, body: ChatRequest | TokenizeRequest) -> str:
        """`render`, beside the event loop where there is much of it."""
        many = len(body.messages or ()) > MANY_MESSAGES
        return await asyncio.to_thread(self.render, body) if many else self.render(body)

    async def start_chat(self, body: ChatRequest, request_id: str) -> tuple[Generation, Callable[[], Reply]]:
        """The generation, and what makes the parsers of one choice's text."""
        builder = self.require_ready()
        self.check_model(body.model)
        wanted = chat_output_tokens(body)
        auto = self._calls_freely(body)
        grammar = await self._grammar(body)
        text = await self.rendered(body)
        beginning = reasoning_after(text, self.settings.reasoning_parser)
        if grammar is not None:
            grammar = after_reasoning(grammar, beginning, self.tokenizer)
        prompt = await self.encode(text, add_special_tokens=body.add_special_tokens)
        prompt = builder.truncated(body, prompt, wanted)
        params = builder.build(
            body,
            [prompt],
            wanted=wanted,
            param="messages",
            grammar=grammar,
            keep_special_tokens=self._keeps_special_tokens(auto, beginning),
        )
        generation = self._submit(body, request_id, [prompt], params, n=body.n)
        return generation, lambda: self._new_reply(body, beginning)

    def _keeps_special_tokens(self, calls_freely: bool, beginning: Reasoning) -> bool:
        """A parser looks for them in the text."""
        parser = self.settings.tool_call_parser
        if calls_freely and parser is not None and keeps_special_tokens(parser):
            return True
        return beginning is not Reasoning.NONE and self.tokenizer.special_id(CLOSE) is not None

    async def start_completion(self, body: CompletionRequest, request_id: str) -> Generation:
        builder = self.require_ready()
        self.check_model(body.model)
        wanted = completion_output_tokens(body)
        found = await self._prompts(body.prompt, "prompt", special=body.add_special_tokens)
        prompts = [builder.truncated(body, prompt, wanted) for prompt in found]
        grammar = await self._grammar(body)
        params = builder.build(
            body, prompts, wanted=wanted, param="prompt", unasked=DEFAULT_COMPLETION_TOKENS, grammar=grammar
        )
        return self._submit(body, request_id, prompts, params, n=body.n)

    async def start_embedding(self, body: EmbeddingRequest, request_id: str) -> Generation:
        builder = self.require_ready()
        self.check_model(body.model)
        if self.pooling is None:
            raise RequestError(
                f"{self.names[0]} is no embedding model (its folder has no 1_Pooling/config.json): serve one, or start the "
                "engine with --convert embed to take the last token's vector.",
                param="model",
                code="unsupported",
            )
        if body.dimensions is not None:
            raise RequestError(
                "dimensions is not supported: vectors come whole.", param="dimensions", code="unsupported"
            )
        found = await self._prompts(body.input, "input", special=body.add_special_tokens)
        prompts = [builder.truncated(body, prompt, 1) for prompt in found]
        return self._submit(body, request_id, prompts, builder.pooling(body, prompts, self.pooling), n=1)

    def _new_reply(self, body: ChatRequest, beginning: Reasoning) -> Reply:
        tools = self._tool_parser(body)
        return Reply(
            None if beginning is Reasoning.NONE else ReasoningParser(beginning),
            tools,
            named=isinstance(tools, NamedParser),
            parallel=body.parallel_tool_calls,
            show_reasoning=body.include_reasoning,
        )

    async def _grammar(self, body: ChatRequest | CompletionRequest) -> str | None:
        """Checked off the event loop: a schema may be large."""
        if not wants_structure(body):
            return None
        return await asyncio.get_running_loop().run_in_executor(_checkers(), grammar_of, body)

    def _tool_parser(self, body: ChatRequest) -> ToolParser | None:
        if not body.tools:
            return None
        if isinstance(body.tool_choice, NamedTool):
            return NamedParser(body.tool_choice.function.name)
        if body.tool_choice == "required":
            return RequiredParser()
        parser = self.settings.tool_call_parser
        return new_tool_parser(parser) if parser is not None and self._calls_freely(body) else None

    def _calls_freely(self, body: ChatRequest) -> bool:
        """The model decides whether to call. Raises `RequestError` when the server was not started for that."""
        if body.tool_choice is not None and body.tool_choice != "none" and not body.tools:
            if body.tool_choice == "auto":
                return False
            raise RequestError("tool_choice needs tools.", param="tool_choice")
        if not body.tools or body.tool_choice not in (None, "auto"):
            return False
        if not self.settings.enable_auto_tool_choice:
            raise RequestError(
                "tool_choice auto (the default where there are tools) needs an engine started with "
                "--enable-auto-tool-choice and --tool-call-parser; without them use required, none or a named function.",
                param="tool_choice",
                code="unsupported",
            )
        return True

    def _submit(
        self,
        body: ChatRequest | CompletionRequest | EmbeddingRequest,
        request_id: str,
        prompts: list[list[int]],
        params: Sequence[SamplingParams],
        *,
        n: int,
    ) -> Generation:
        salt = hashlib.sha256(body.cache_salt.encode()).digest() if body.cache_salt else b""
        adapter = body.model if body.model not in self.names else None
        return self.engine.submit(GenerationRequest(request_id, prompts, list(params), n, salt, body.priority, adapter))

    async def _prompts(self, given: str | list[Any], param: str, *, special: bool) -> list[list[int]]:
        """The four forms of a prompt: a text, texts, token ids, lists of token ids. `special`: with the special tokens."""
        if isinstance(given, str):
            given = [given]
        if not given:
            raise RequestError(f"{param} must hold at least one token.", param=param)
        if are_integers(given):
            return [given]
        check_batch(len(given), param)
        prompts: list[list[int]] = []
        for item in given:
            if isinstance(item, str):
                prompts.append(await self.encode(item, add_special_tokens=special))
                await asyncio.sleep(0)  # many small texts are a large one: others have their turn
            elif isinstance(item, list) and are_integers(item):
                prompts.append(item)
            else:
                raise RequestError(
                    f"{param} must be a string, a list of strings, a list of token ids or a list of lists of token ids.",
                    param=param,
                )
        return prompts

    async def cancel(self, request_id: str) -> FinishedUsage | None:
        """Aborts the request and returns what it used, once its pages are free; None for an unknown id, whose request ends as
        soon as it comes, if it comes soon."""
        generation = self.engine.find(request_id)
        if generation is not None:
            self.engine.abort(generation)
            await generation.ended.wait()
        used = self.engine.finished(request_id)
        if used is None and is_request_id(request_id):
            self.engine.abort_on_arrival(request_id)
        return used


def _tools(body: ChatRequest | TokenizeRequest) -> list[dict[str, Any]] | None:
    """What the template is told of; nothing where calling is forbidden."""
    if not body.tools or (isinstance(body, ChatRequest) and body.tool_choice == "none"):
        return None
    return [
        {"type": "function", "function": _without_none(msgspec.structs.asdict(tool.function))} for tool in body.tools
    ]


def _without_none(values: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


def usage_body(usage: Usage) -> dict[str, Any]:
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
        "metergate": {"compute_us": usage.compute_us},
    }


def now_s() -> int:
    return int(time.time())
