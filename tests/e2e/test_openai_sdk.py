"""The official OpenAI SDK, unchanged, against the running product with the real model."""

from __future__ import annotations

import asyncio
from decimal import Decimal
from typing import Any

import openai
import pytest

from tests.e2e.product import Product, until

MODEL = "smollm2-135m-instruct"
CONTEXT = 8192
INPUT_USD, CACHED_USD, OUTPUT_USD = Decimal("0.01"), Decimal("0.001"), Decimal("0.02")
"""Per million tokens: the shipped price of the local model."""


@pytest.fixture
def client(product: Product) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{product.url}/v1", api_key=product.team_key, max_retries=0, timeout=120)


def ask(text: str) -> list[Any]:
    return [{"role": "user", "content": text}]


def row_of(product: Product, request_id: str) -> dict[str, Any]:
    """The usage row of a request, once the recorder has written it."""

    def fetch() -> dict[str, Any] | None:
        with product.admin() as admin:
            answer = admin.get(f"/usage/requests/{request_id}")
        if answer.status_code == 404:
            return None
        answer.raise_for_status()
        row: dict[str, Any] = answer.json()
        return row

    found: dict[str, Any] = until(fetch, 10, "the usage row")
    return found


def priced(tokens: dict[str, int]) -> Decimal:
    """What the local model costs: each class once, in USD."""
    by_class = {"input": INPUT_USD, "cache_read": CACHED_USD, "output": OUTPUT_USD}
    return sum((tokens.get(name, 0) * price for name, price in by_class.items()), Decimal(0)) / 1_000_000


def test_models_are_listed_with_context_window_and_pricing(client: openai.OpenAI) -> None:
    models = list(client.models.list())
    assert [model.id for model in models] == [MODEL]
    one = client.models.retrieve(MODEL).to_dict()
    assert one["context_window"] == CONTEXT
    assert one["max_output_tokens"] == 4096
    assert one["pricing"] == {
        "currency": "USD",
        "unit": "mtok",
        "input": "0.01",
        "cache_read": "0.001",
        "output": "0.02",
    }


def test_a_chat_is_answered_priced_and_booked_to_the_last_digit(product: Product, client: openai.OpenAI) -> None:
    raw = client.chat.completions.with_raw_response.create(
        model=MODEL, messages=ask("What is the capital of France?"), temperature=0, max_tokens=24
    )
    answer = raw.parse()
    assert "Paris" in (answer.choices[0].message.content or "")
    assert answer.usage is not None
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens
    amount, currency = raw.headers["x-metergate-cost"].split()
    row = row_of(product, raw.headers["x-request-id"])
    cached = row["tokens"].get("cache_read", 0)
    assert row["tokens"].get("input", 0) + cached == answer.usage.prompt_tokens
    assert row["tokens"]["output"] == answer.usage.completion_tokens
    assert currency == "USD"
    assert (
        Decimal(row["list"]["amount"]) == Decimal(row["settled"]["amount"]) == Decimal(amount) == priced(row["tokens"])
    )
    assert row["status"] == "completed"
    assert row["estimated"] is False
    assert row["price_rows"]


def test_a_stream_says_what_the_whole_answer_says(client: openai.OpenAI) -> None:
    wanted: dict[str, Any] = {
        "model": MODEL,
        "messages": ask("Name three colours."),
        "temperature": 0,
        "max_tokens": 32,
    }
    whole = client.chat.completions.create(**wanted)
    pieces: list[str] = []
    usages = []
    for chunk in client.chat.completions.create(**wanted, stream=True, stream_options={"include_usage": True}):
        pieces += [choice.delta.content or "" for choice in chunk.choices]
        if chunk.usage is not None:
            usages.append((chunk.choices, chunk.usage))
    assert "".join(pieces) == whole.choices[0].message.content
    assert len(usages) == 1
    assert usages[0][0] == []
    assert whole.usage is not None
    assert usages[0][1].completion_tokens == whole.usage.completion_tokens
    assert usages[0][1].prompt_tokens == whole.usage.prompt_tokens


def test_a_stream_without_include_usage_has_no_usage_chunk_and_is_booked_all_the_same(
    product: Product, client: openai.OpenAI
) -> None:
    with client.chat.completions.with_streaming_response.create(
        model=MODEL, messages=ask("Say hello."), max_tokens=8, stream=True
    ) as stream:
        request_id = stream.headers["x-request-id"]
        lines = [line for line in stream.iter_lines() if line]
    assert lines[-1] == "data: [DONE]"
    assert not any('"usage":{' in line.replace(" ", "") for line in lines)
    row = row_of(product, request_id)
    assert row["tokens"]["output"] > 0
    assert row["estimated"] is False


async def test_ten_calls_at_once_are_each_answered_and_booked(product: Product) -> None:
    async with openai.AsyncOpenAI(base_url=f"{product.url}/v1", api_key=product.team_key, max_retries=0) as client:

        async def call(number: int) -> tuple[str, int]:
            raw = await client.chat.completions.with_raw_response.create(
                model=MODEL, messages=ask(f"Count from {number} to {number + 3}."), max_tokens=16, temperature=0
            )
            usage = raw.parse().usage
            assert usage is not None
            return raw.headers["x-request-id"], usage.completion_tokens

        answers = await asyncio.gather(*(call(number) for number in range(10)))
    assert len({request_id for request_id, _ in answers}) == 10
    for request_id, completion_tokens in answers:
        row = await asyncio.to_thread(row_of, product, request_id)
        assert row["tokens"]["output"] == completion_tokens


def test_max_completion_tokens_bounds_the_answer(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(model=MODEL, messages=ask("Tell a long story."), max_completion_tokens=5)
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 5


def test_a_chinese_prompt_comes_through(product: Product, client: openai.OpenAI) -> None:
    raw = client.chat.completions.with_raw_response.create(
        model=MODEL, messages=ask("你好，请用一句话介绍北京。"), max_tokens=32, temperature=0
    )
    choice = raw.parse().choices[0]
    assert choice.message.content
    # The limit may cut the last character in two; none before it is broken.
    whole = choice.message.content[:-1] if choice.finish_reason == "length" else choice.message.content
    assert "\ufffd" not in whole
    assert row_of(product, raw.headers["x-request-id"])["tokens"]["output"] > 0


def test_completions_answer_too(client: openai.OpenAI) -> None:
    answer = client.completions.create(model=MODEL, prompt="The sky is", max_tokens=4, temperature=0)
    assert answer.choices[0].text
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 4


def test_an_overlong_prompt_is_a_400_with_the_right_numbers(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model=MODEL, messages=ask("word " * 9000), max_tokens=100)
    error = caught.value.body
    assert isinstance(error, dict)
    assert error["code"] == "context_length_exceeded"
    assert error["type"] == "invalid_request_error"
    assert str(CONTEXT) in error["message"]
    assert "100" in error["message"]
    assert set(error) == {"message", "type", "param", "code"}


def test_a_wrong_key_is_a_401_that_does_not_repeat_it(product: Product) -> None:
    wrong = "sk-mg-" + "a" * 16 + "-" + "b" * 43
    client = openai.OpenAI(base_url=f"{product.url}/v1", api_key=wrong, max_retries=0)
    with pytest.raises(openai.AuthenticationError) as caught:
        client.models.list()
    assert wrong not in str(caught.value)
    assert "b" * 43 not in str(caught.value)


def test_an_unknown_model_is_a_404(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as caught:
        client.chat.completions.create(model="no-such-model", messages=ask("Hello"))
    body = caught.value.body
    assert isinstance(body, dict)
    assert body["code"] == "model_not_found"


def test_metrics_and_health_answer(product: Product) -> None:
    with product.caller() as caller:
        assert caller.get("/health/live").status_code == 200
        assert caller.get("/health/ready").status_code == 200
        assert "metergate_" in caller.get("/metrics").text


@pytest.mark.parametrize("text", ["hi", "What is the capital of France?"])
def test_rule_14_what_is_reserved_covers_what_the_chat_template_adds(product: Product, text: str) -> None:
    with product.admin() as admin:
        team = admin.get("/teams").json()["data"][0]["id"]
        made = admin.post(
            "/keys", json={"team_id": team, "name": "bound", "limits": {"tokens_per_minute": 100_000}}
        ).json()
    call = {"model": "smollm2-135m-instruct", "messages": [{"role": "user", "content": text}], "max_tokens": 3}
    with product.caller(made["key"]) as caller:
        answer = caller.post("/v1/chat/completions", json=call)
    assert answer.status_code == 200
    reserved = 100_000 - int(answer.headers["x-ratelimit-remaining-tokens"])
    assert reserved >= answer.json()["usage"]["prompt_tokens"] + 3
