"""What can go wrong in the engine.

EngineError
├── ConfigError           a flag or a combination of flags that cannot work (exit at start)
├── ModelError            model files missing, corrupt or not supported (exit at start)
│   ├── TokenizerError        no usable tokenizer beside the weights
│   └── OutOfMemory           weights or KV pool do not fit; the message says what would
├── RequestError          the caller's request cannot be served: 400, with `param` and `code`
│   ├── ContextOverflow       prompt plus output exceed the model's context
│   └── ChatTemplateError     the model's template refused the messages; its own words
├── Overloaded            the waiting queue is full: 503 with retry-after
├── Draining              the server is stopping: 503
├── Unresponsive          the core process has not answered for seconds: 503 with retry-after
├── RanksLost             a rank of a split model died, hangs or failed: the core ends
└── EngineDead            the core process is gone: in-band errors, then exit
"""

from __future__ import annotations


class EngineError(Exception):
    """Base of all errors of this package. The message is written for the person who has to act on it."""


class ConfigError(EngineError):
    pass


class ModelError(EngineError):
    pass


class TokenizerError(ModelError):
    pass


class OutOfMemory(ModelError):
    pass


class RequestError(EngineError):
    """A request that cannot be served as it stands: HTTP 400 in OpenAI's shape."""

    def __init__(self, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.param = param
        self.code = code


class ContextOverflow(RequestError):
    """Prompt plus requested output exceed the context. OpenAI's wording and code, with all numbers (tokens).

    `output` is None when the request named none and the prompt alone leaves no room.
    """

    def __init__(self, *, limit: int, prompt: int, output: int | None, param: str) -> None:
        noun = "messages" if param == "messages" else "prompt"
        if output is None:
            asked = f"your {noun} resulted in {prompt} tokens. Please reduce the length of the {noun}."
        else:
            asked = (
                f"you requested {prompt + output} tokens ({prompt} in the {noun}, {output} in the completion). "
                f"Please reduce the length of the {noun} or completion."
            )
        super().__init__(
            f"This model's maximum context length is {limit} tokens. However, {asked}",
            param=param,
            code="context_length_exceeded",
        )
        self.limit = limit
        self.prompt = prompt
        self.output = output


class ChatTemplateError(RequestError):
    def __init__(self, message: str) -> None:
        super().__init__(message, param="messages", code="chat_template_error")


class Overloaded(EngineError):
    def __init__(self, message: str, *, retry_after_s: int = 1) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class Draining(EngineError):
    pass


class Unresponsive(EngineError):
    pass


class RanksLost(EngineError):
    pass


class EngineDead(EngineError):
    pass
