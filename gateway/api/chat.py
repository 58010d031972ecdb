"""POST /v1/chat/completions."""

from __future__ import annotations

from gateway import tokens
from gateway.api.caps import CHAT, read_cap
from gateway.api.surface import MOST_CHOICES, OpenAIErrors, read_count, read_fields, read_model, read_stream
from gateway.errors import bad_request
from gateway.upstream.base import Call


class ChatCompletions(OpenAIErrors):
    name = "chat"

    def read(self, body: bytes) -> Call:
        """Raises `ApiError` 400. Whatever is not looked at here is the provider's to judge."""
        fields = read_fields(body)
        model = read_model(fields)
        messages = fields.get("messages")
        if messages is None:
            raise bad_request("'messages' is required.", param="messages", code="missing_field")
        view = memoryview(messages)
        if view[0] != ord("["):
            raise bad_request("'messages' must be a list.", param="messages")
        if len(view) < 8 and not bytes(view)[1:-1].strip():
            raise bad_request("'messages' must have at least one message.", param="messages")
        streamed, wants_usage = read_stream(fields)
        cap = read_cap(fields, CHAT)
        choices = read_count(fields, "n", least=1, most=MOST_CHOICES) or 1
        best_of = read_count(fields, "best_of", least=1, most=MOST_CHOICES) or 1
        return Call(
            surface=self.name,
            path="/chat/completions",
            fields=fields,
            model=model,
            streamed=streamed,
            wants_usage=wants_usage,
            choices=choices,
            output_cap=cap,
            input_tokens=tokens.estimate(fields),
            generated=max(choices, best_of),
        )
