"""POST /v1/embeddings."""

from __future__ import annotations

from gateway import tokens
from gateway.api.surface import OpenAIErrors, read_fields, read_model, read_streamed
from gateway.errors import bad_request
from gateway.upstream.base import Call


class Embeddings(OpenAIErrors):
    name = "embeddings"

    def read(self, body: bytes) -> Call:
        """Raises `ApiError` 400. There is no output to reserve."""
        fields = read_fields(body)
        model = read_model(fields)
        given = bytes(fields.get("input", b"null"))
        if given == b"null":
            raise bad_request("'input' is required.", param="input", code="missing_field")
        if given[:1] not in (b'"', b"[") or not given[1:-1].strip():
            raise bad_request("'input' must be a text, a list of texts, token ids, or a list of those.", param="input")
        if read_streamed(fields):
            raise bad_request("'stream' is not possible for embeddings.", param="stream")
        return Call(
            surface=self.name,
            path="/embeddings",
            fields=fields,
            model=model,
            streamed=False,
            wants_usage=False,
            choices=1,
            output_cap=0,
            speaks=False,
            input_tokens=tokens.estimate(fields),
        )
