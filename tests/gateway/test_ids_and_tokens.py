"""Request ids and the token estimate."""

from __future__ import annotations

import json
import time
import uuid

from msgspec import Raw

from gateway import tokens
from gateway.ids import new_request_id, text_of, time_us_of


def raw(**values: object) -> dict[str, Raw]:
    return {name: Raw(json.dumps(value, ensure_ascii=False).encode()) for name, value in values.items()}


def test_ids_are_uuid7_and_strictly_increasing() -> None:
    ids = [new_request_id() for _ in range(20_000)]
    assert all(each.version == 7 and each.variant == uuid.RFC_4122 for each in ids[:100])
    assert ids == sorted(set(ids))


def test_an_id_is_a_plain_uuid_and_its_text_is_pythons() -> None:
    made = new_request_id()
    assert made == uuid.UUID(int=made.int) == uuid.UUID(text_of(made)) and text_of(made) == str(made)
    assert (made.is_safe, hash(made)) == (uuid.SafeUUID.unknown, hash(uuid.UUID(int=made.int)))


def test_an_id_says_when_it_was_made() -> None:
    before = time.time_ns() // 1_000_000 * 1000
    made = time_us_of(new_request_id())
    assert before <= made <= time.time_ns() // 1000 + 2000


def test_a_prompt_is_never_estimated_below_its_own_bytes_over_four() -> None:
    text = "The quick brown fox jumps over the lazy dog. " * 50
    fields = raw(messages=[{"role": "user", "content": text}])
    assert len(text) // 4 < tokens.estimate(fields) < len(text) // 2


def test_one_chinese_character_is_about_one_token() -> None:
    assert 1000 <= tokens.estimate(raw(prompt="\u4f60\u597d" * 500)) <= 1010


def test_an_image_in_the_prompt_counts_as_an_image_not_as_its_base64() -> None:
    picture = "data:image/png;base64," + "iVBORw0KGgo" * 20_000
    fields = raw(messages=[{"role": "user", "content": [{"type": "image_url", "image_url": {"url": picture}}]}])
    assert tokens.MEDIA_TOKENS <= tokens.estimate(fields) <= tokens.MEDIA_TOKENS + 60
    assert tokens.floor(fields) < 10


def test_token_ids_are_counted_not_weighed() -> None:
    assert tokens.estimate(raw(prompt=[100_000] * 3000)) == 3000 + tokens.PRIMING_TOKENS


def test_tools_are_part_of_the_prompt() -> None:
    bare = raw(messages=[])
    tools = raw(messages=[], tools=[{"type": "function", "function": {"name": "f", "description": "d" * 300}}])
    assert tokens.estimate(tools) - tokens.estimate(bare) > 100


def test_token_ids_of_one_digit_and_in_batches_are_counted_too() -> None:
    assert tokens.estimate(raw(prompt=[7] * 900)) == 900 + tokens.PRIMING_TOKENS
    assert tokens.estimate(raw(input=[[7] * 900, [8] * 900])) == 1800 + tokens.PRIMING_TOKENS


def test_media_by_address_counts_as_media_in_every_dialect() -> None:
    url = "https://example.com/a.png"
    parts = (
        {"type": "image_url", "image_url": {"url": url}},
        {"type": "input_image", "image_url": url},
        {"type": "image", "source": {"type": "url", "url": url}},
        {"type": "document", "source": {"type": "url", "url": url}},
    )
    for part in parts:
        one = tokens.estimate(raw(messages=[{"role": "user", "content": [part]}]))
        three = tokens.estimate(raw(messages=[{"role": "user", "content": [part] * 3}]))
        assert tokens.MEDIA_TOKENS <= one <= tokens.MEDIA_TOKENS + 60
        assert three - one >= 2 * tokens.MEDIA_TOKENS
    spoken_of = raw(messages=[{"role": "user", "content": json.dumps(parts[0])}])
    assert tokens.estimate(spoken_of) < 100


def test_a_sound_or_a_document_counts_by_its_size() -> None:
    sound = {"type": "input_audio", "input_audio": {"data": "UklGR" * 100_000, "format": "wav"}}
    pages = {
        "type": "document",
        "source": {"type": "base64", "media_type": "application/pdf", "data": "JVBER" * 100_000},
    }
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "iVBOR" * 100_000}}
    for part, expected in ((sound, 5_000), (pages, 5_000), (image, tokens.MEDIA_TOKENS)):
        found = tokens.estimate(raw(messages=[{"role": "user", "content": [part]}]))
        assert expected <= found <= expected + 60


def test_a_text_without_spaces_is_no_picture() -> None:
    """Law: what is read as text counts by its bytes, whatever it looks like and wherever it stands."""
    text = "abcdefgh" * 10_000
    least = len(text) // tokens.BYTES_PER_TOKEN
    for fields in (
        raw(messages=[{"role": "user", "content": text}]),
        raw(messages=[{"role": "user", "content": [{"type": "text", "text": text}]}]),
        raw(messages=[], tools=[{"type": "function", "function": {"name": "f", "parameters": {"data": text}}}]),
        raw(messages=[], documents=[{"title": "a", "text": text}]),
        raw(messages=[], chat_template_kwargs={"context": text}),
        raw(messages=[], response_format={"type": "json_schema", "json_schema": {"schema": {"title": text}}}),
    ):
        assert tokens.estimate(fields) >= least


def test_what_no_prompt_is_made_of_does_not_count() -> None:
    bare = raw(messages=[{"role": "user", "content": "hello"}])
    more = bare | raw(
        model="m" * 100,
        temperature=0.123456789,
        user="u" * 300,
        metadata={"k": "v" * 500},
        top_k=40,
        logit_bias={"1": 2},
    )
    assert tokens.estimate(more) == tokens.estimate(bare)


def test_the_floor_is_below_any_tokenizer() -> None:
    assert tokens.floor(raw(prompt=" " * 16_000)) <= 1001
