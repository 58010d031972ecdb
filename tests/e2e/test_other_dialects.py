"""The bundled engine under the dialects that it does not speak itself: the official SDKs, unchanged, on the real model."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import anthropic
import openai
import pytest

from tests.e2e.product import Product, until

MODEL = "smollm2-135m-instruct"
QUESTION: list[Any] = [
    {
        "role": "user",
        "content": [
            {"type": "text", "text": "A question:"},
            {"type": "text", "text": "What is the capital of France?"},
        ],
    }
]


@pytest.fixture
def client(product: Product) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=product.url, api_key=product.team_key, max_retries=0, timeout=120) as client:
        yield client


@pytest.fixture
def by_openai(product: Product) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{product.url}/v1", api_key=product.team_key, max_retries=0, timeout=120) as client:
        yield client


def row_of(product: Product, request_id: str) -> Any:
    def fetch() -> Any:
        with product.admin() as admin:
            answer = admin.get(f"/usage/requests/{request_id}")
        return None if answer.status_code == 404 else answer.json()

    return until(fetch, 10, "the usage row")


def test_a_message_a_stream_and_a_count_agree(product: Product, client: anthropic.Anthropic) -> None:
    asked: dict[str, Any] = {"model": MODEL, "system": "Be brief.", "messages": QUESTION}
    counted = client.messages.count_tokens(**asked).input_tokens
    raw = client.messages.with_raw_response.create(**asked, max_tokens=24, extra_body={"temperature": 0})
    message = raw.parse()
    block: Any = message.content[0]
    assert "Paris" in block.text
    usage = message.usage
    assert usage.input_tokens + (usage.cache_read_input_tokens or 0) == counted
    with client.messages.stream(**asked, max_tokens=24, extra_body={"temperature": 0}) as stream:
        assert "".join(stream.text_stream) == block.text
        final = stream.get_final_message()
    assert (final.stop_reason, final.usage.output_tokens) == (message.stop_reason, usage.output_tokens)
    row = row_of(product, raw.headers["x-request-id"])
    assert (row["surface"], row["tokens"]["output"], row["estimated"]) == ("messages", usage.output_tokens, False)


def test_a_response_and_its_stream_agree(by_openai: openai.OpenAI) -> None:
    asked: dict[str, Any] = {"model": MODEL, "input": "What is the capital of France?", "temperature": 0}
    whole = by_openai.responses.create(**asked, max_output_tokens=24)
    assert "Paris" in whole.output_text
    with by_openai.responses.stream(**asked, max_output_tokens=24) as stream:
        pieces = [event.delta for event in stream if event.type == "response.output_text.delta"]
        final = stream.get_final_response()
    assert "".join(pieces) == final.output_text == whole.output_text
    assert final.usage is not None and whole.usage is not None
    assert final.usage.output_tokens == whole.usage.output_tokens
    cut = by_openai.responses.create(model=MODEL, input="Tell a long story.", max_output_tokens=3)
    assert cut.incomplete_details is not None and cut.incomplete_details.reason == "max_output_tokens"
