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


def test_the_floor_is_below_any_tokenizer() -> None:
    assert tokens.floor(raw(prompt=" " * 16_000)) <= 1001
