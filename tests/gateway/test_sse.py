"""The stream scanner: what is forwarded, what is held back, and what is found."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from billing.usage import Usage
from gateway.spoken import SAMPLE_BYTES, size_of, text_of_answer
from gateway.sse import MAX_EVENT_BYTES, StreamBroken, StreamScanner
from gateway.tokens import of_text

HEAD = {"id": "c1", "object": "chat.completion.chunk", "created": 7, "model": "m"}
USAGE = {"prompt_tokens": 9, "completion_tokens": 5, "total_tokens": 14}


def event(**fields: Any) -> bytes:
    return b"data: " + json.dumps({**HEAD, **fields}, ensure_ascii=False, separators=(",", ":")).encode() + b"\n\n"


def content(text: str, finish: str | None = None, **more: Any) -> bytes:
    return event(choices=[{"index": 0, "delta": {"content": text}, "finish_reason": finish}], **more)


FINAL_USAGE = event(choices=[], usage=USAGE)
DONE = b"data: [DONE]\n\n"


def scan(reads: list[bytes], *, strip: bool = True, choices: int = 1) -> tuple[bytes, StreamScanner]:
    scanner = StreamScanner(strip_usage=strip, choices=choices)
    out = b"".join(scanner.feed(read) for read in reads)
    return out + scanner.end(), scanner


def usage_of(scanner: StreamScanner) -> Any:
    assert scanner.usage is not None
    return json.loads(scanner.usage)


def test_a_read_without_anything_special_is_forwarded_as_the_same_object() -> None:
    scanner = StreamScanner(strip_usage=True)
    read = content("a") + content("b")
    assert scanner.feed(read) is read


def test_the_usage_chunk_and_done_are_held_back() -> None:
    out, scanner = scan([content("a"), content("b", "stop") + FINAL_USAGE + DONE])
    assert out == content("a") + content("b", "stop")
    assert usage_of(scanner) == USAGE
    assert scanner.done and scanner.finished


@pytest.mark.parametrize(
    "chunk",
    [
        content("x", "stop", usage=USAGE),
        event(choices=[{"index": 0, "delta": {}, "finish_reason": "stop", "usage": USAGE}]),
        event(choices=[{"index": 0, "delta": {}, "finish_reason": "stop"}], x_groq={"usage": USAGE}),
        b'data: {"choices":[],"usage" : {"prompt_tokens":9,"completion_tokens":5,"total_tokens":14}}\n\n',
    ],
)
def test_rule_03_usage_counts_wherever_it_stands(chunk: bytes) -> None:
    _, scanner = scan([content("a"), chunk, content("late"), DONE])
    assert usage_of(scanner) == USAGE


@pytest.mark.parametrize("choices", [b'"choices":[],', b'"choices":[{"index":0,"delta":{}}],', b""])
@pytest.mark.parametrize("damaged", [b'{"completion_token\x80":0}', b'{"a":"\xff"}'])
def test_a_usage_with_damaged_bytes_breaks_the_stream_or_counts_as_it_reads(choices: bytes, damaged: bytes) -> None:
    scanner = StreamScanner(strip_usage=True)
    try:
        scanner.feed(b"data: {" + choices + b'"usage":' + damaged + b"}\n\n")
    except StreamBroken:
        return
    scanner.ending(Usage(), "1 USD", wanted=True)


def test_rule_03_the_last_usage_wins() -> None:
    grown = {**USAGE, "completion_tokens": 8, "total_tokens": 17}
    _, scanner = scan([content("a", usage=USAGE) + content("b", usage=grown), content("c", "stop") + DONE])
    assert usage_of(scanner) == grown


def test_rule_17_usage_on_a_chunk_with_choices_is_taken_out_unless_asked_for() -> None:
    finish = content("", "stop", usage=USAGE)
    assert scan([finish + DONE])[0] == content("", "stop")
    assert scan([finish + DONE], strip=False)[0] == finish


def test_rule_17_a_null_usage_is_no_usage_and_passes() -> None:
    read = content("a", usage=None)
    out, scanner = scan([read, content("b", "stop") + DONE])
    assert out.startswith(read)
    assert scanner.usage is None


def test_rule_18_editing_one_event_leaves_its_neighbours_byte_for_byte() -> None:
    odd = b'data:{"choices" : [ {"index":0,"delta":{"content":"\xe4\xbd\xa0"},"finish_reason":null} ], "n":1.0e0}\n\n'
    comment = b": note \xff\n\n"
    out, _ = scan([odd + comment + content("", "stop", usage=USAGE) + odd + FINAL_USAGE + odd + DONE])
    assert out == odd + comment + content("", "stop") + odd + odd


STREAM = b"".join(
    [content("a"), b": note\n\n", content("\u4f60\u597d \U0001f98a"), content("end", "stop"), FINAL_USAGE, DONE]
)
FORWARDED = STREAM.replace(FINAL_USAGE, b"").replace(DONE, b"")


@given(st.lists(st.integers(1, len(STREAM) - 1), max_size=12), st.sampled_from([b"\n", b"\r\n", b"\r"]))
def test_rule_18_any_cut_into_reads_gives_the_same_stream(cuts: list[int], newline: bytes) -> None:
    stream, expected = STREAM.replace(b"\n", newline), FORWARDED.replace(b"\n", newline)
    places = sorted({0, *(min(cut, len(stream)) for cut in cuts), len(stream)})
    reads = [stream[a:b] for a, b in pairwise(places)]
    out, scanner = scan(reads)
    assert out.replace(b"\r\n", b"\n").replace(b"\r", b"\n").rstrip() == FORWARDED.rstrip()
    # Where a read ends within the CRLF before the usage chunk, the LF is held back with it.
    assert len(expected) - len(out) in {0, 1}
    assert usage_of(scanner) == USAGE
    assert scanner.done and scanner.finished and scanner.error is None


def test_rule_18_every_byte_a_read_of_its_own() -> None:
    out, scanner = scan([STREAM[i : i + 1] for i in range(len(STREAM))])
    assert out == FORWARDED
    assert usage_of(scanner) == USAGE


def test_rule_18_a_line_of_one_mebibyte_passes() -> None:
    long = content("x" * (1 << 20))
    reads = [long[i : i + 65_536] for i in range(0, len(long), 65_536)]
    assert scan([*reads, content("", "stop") + DONE])[0] == long + content("", "stop")


def test_rule_18_no_final_newline_and_no_done() -> None:
    out, scanner = scan([content("a"), content("b", "stop").rstrip(b"\n")])
    assert out == content("a") + content("b", "stop")
    assert scanner.finished and not scanner.done and not scanner.truncated


def test_an_event_cut_in_its_middle_is_dropped_and_noticed() -> None:
    out, scanner = scan([content("a"), content("b", "stop")[:40]])
    assert out == content("a")
    assert scanner.truncated


def test_nothing_behind_done_is_forwarded() -> None:
    out, _ = scan([content("a", "stop") + DONE + content("after"), content("more")])
    assert out == content("a", "stop")


def test_words_of_the_protocol_inside_content_are_only_text() -> None:
    read = content('"usage": {"prompt_tokens": 1} [DONE] "error": {"message": 1} "finish_reason":"stop"')
    scanner = StreamScanner(strip_usage=True)
    assert scanner.feed(read) == read
    assert scanner.usage is None and scanner.error is None and not scanner.done and not scanner.finished


def test_rule_21_an_in_band_error_ends_the_stream_and_is_not_forwarded() -> None:
    out, scanner = scan([content("a") + b'data: {"error":{"message":"boom"}}\n\n' + content("b")])
    assert out == content("a")
    assert scanner.done and scanner.error == b'{"message":"boom"}'


def test_an_error_that_is_null_is_no_error() -> None:
    read = content("a", error=None)
    assert scan([read])[0] == read


def test_two_choices_are_finished_when_both_are() -> None:
    first = content("a", "stop")
    _, scanner = scan([first], choices=2)
    assert not scanner.finished
    scanner.feed(first)
    assert scanner.finished


def test_an_endless_event_is_refused_before_memory_is() -> None:
    scanner = StreamScanner(strip_usage=True)
    for _ in range(MAX_EVENT_BYTES // 65_536):
        scanner.feed(b"x" * 65_536)
    with pytest.raises(StreamBroken, match="more than"):
        scanner.feed(b"x")


def test_an_event_that_should_hold_usage_but_is_no_json_is_refused() -> None:
    with pytest.raises(StreamBroken, match="no chunk"):
        scan([b'data: {"usage": {"prompt_tokens": 1\n\n'])


def test_rule_22_twenty_thousand_chunks_keep_nothing() -> None:
    scanner = StreamScanner(strip_usage=True)
    for number in range(20_000):
        read = content(str(number))
        assert scanner.feed(read) is read
    kept = sum(len(each) for each in scanner._gauge._kept)
    assert kept <= SAMPLE_BYTES + len(content("20000"))
    spoken = sum(len(str(number)) for number in range(20_000))
    assert abs(scanner.output_tokens() - of_text(spoken)) < of_text(spoken) // 100
    assert scanner.end() == b""


def test_the_usage_event_is_the_providers_own_with_the_cost_put_in() -> None:
    _, scanner = scan([content("a", "stop") + event(choices=[], usage=USAGE, system_fingerprint="fp") + DONE])
    assert scanner.usage is not None
    data = json.loads(scanner.usage_event(scanner.usage, "0.42 CNY").removeprefix(b"data: "))
    assert data == {**HEAD, "choices": [], "usage": {**USAGE, "cost": "0.42 CNY"}, "system_fingerprint": "fp"}


def test_the_usage_event_is_made_where_the_provider_sent_none() -> None:
    _, scanner = scan([content("a", "stop") + DONE])
    data = json.loads(scanner.usage_event(json.dumps(USAGE).encode(), None).removeprefix(b"data: "))
    assert data == {**HEAD, "choices": [], "usage": USAGE}


@pytest.mark.parametrize("newline", [b"\n", b"\r\n", b"\r"])
@pytest.mark.parametrize("words", [["word"] * 10, ["w" * 4000], ["狐", 'quo"te', "back\\slash", "\n"], ["ab"] * 3000])
def test_output_is_estimated_from_its_text_however_it_is_framed(words: list[str], newline: bytes) -> None:
    _, scanner = scan(
        [read.replace(b"\n", newline) for read in (content(""), *map(content, words), content("", "stop"))]
    )
    exact = of_text(len("".join(words).encode()))
    assert abs(scanner.output_tokens() - exact) <= (0 if len(words) < 100 else exact // 100)


@given(st.lists(st.text(max_size=30), max_size=20), st.integers(1, 50))
def test_the_same_text_is_the_same_estimate_in_one_piece_and_as_a_stream(words: list[str], size: int) -> None:
    stream = b"".join(map(content, words)) + DONE
    _, scanner = scan([stream[at : at + size] for at in range(0, len(stream), size)])
    whole = json.dumps({"choices": [{"message": {"role": "assistant", "content": "".join(words)}}]}).encode()
    assert scanner.output_tokens() == of_text(size_of(text_of_answer(whole)))
