"""POST /v1/completions."""

from __future__ import annotations

import msgspec
from msgspec import Raw

from gateway import tokens
from gateway.api.caps import PLAIN, read_cap
from gateway.api.surface import MOST_CHOICES, OpenAIErrors, read_count, read_fields, read_model, read_stream
from gateway.errors import bad_request
from gateway.upstream.base import Call

MOST_PROMPTS = 2048

_list = msgspec.json.Decoder(list[Raw])


class Completions(OpenAIErrors):
    name = "completions"

    def read(self, body: bytes) -> Call:
        """Raises `ApiError` 400."""
        fields = read_fields(body)
        model = read_model(fields)
        prompts = _count_prompts(fields)
        streamed, wants_usage = read_stream(fields)
        cap = read_cap(fields, PLAIN)
        choices = read_count(fields, "n", least=1, most=MOST_CHOICES) or 1
        generated = max(choices, read_count(fields, "best_of", least=1, most=MOST_CHOICES) or 1)
        return Call(
            surface=self.name,
            path="/completions",
            fields=fields,
            model=model,
            streamed=streamed,
            wants_usage=wants_usage,
            choices=choices * prompts,
            output_cap=cap,
            input_tokens=tokens.estimate(fields),
            generated=generated * prompts,
        )


def _count_prompts(fields: dict[str, Raw]) -> int:
    """A string or a list of token ids is one prompt; a list of strings or of lists is as many as it has."""
    raw = fields.get("prompt")
    if raw is None or bytes(memoryview(raw)[:4]) == b"null":
        raise bad_request("'prompt' is required.", param="prompt", code="missing_field")
    start = memoryview(raw)[0]
    if start == ord('"'):
        return 1
    if start != ord("["):
        raise bad_request(
            "'prompt' must be a string, a list of strings, token ids, or a list of those.", param="prompt"
        )
    items = _list.decode(raw)
    if not items:
        raise bad_request("'prompt' must not be empty.", param="prompt")
    count = len(items) if memoryview(items[0])[0] in b'"[' else 1
    if count > MOST_PROMPTS:
        raise bad_request(f"'prompt' may have at most {MOST_PROMPTS} prompts.", param="prompt")
    return count
