"""Tokens counted from files on the disk: a tokenizer.json, a tiktoken file, and what is neither."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace

from gateway.spoken import text_of
from gateway.token_counting import TokenizerError, count_answer, count_stream, counter


def tiktoken_file(folder: Path, *merges: bytes) -> Path:
    """Every byte, then `merges` in the order of their rank."""
    tokens = [*(bytes([byte]) for byte in range(256)), *merges]
    path = folder / "small.tiktoken"
    path.write_bytes(b"".join(b"%b %d\n" % (base64.b64encode(token), rank) for rank, token in enumerate(tokens)))
    return path


def test_a_tiktoken_file_merges_by_rank_within_pieces(tmp_path: Path) -> None:
    count = counter(tiktoken_file(tmp_path, b"he", b"ll", b"hell", b"hello", b" w", b"or", b"ld"))
    assert count("hello") == 1
    assert count("hello world") == 1 + 3  # " w", "or", "ld": a space belongs to the word behind it
    assert count("hellohe") == 2
    assert count("12345") == 5
    assert count("狐") == 3
    assert count("") == 0


def test_the_lowest_rank_is_merged_first(tmp_path: Path) -> None:
    assert counter(tiktoken_file(tmp_path, b"ab", b"bc", b"abc"))("abc") == 1
    (tmp_path / "other").mkdir()
    assert counter(tiktoken_file(tmp_path / "other", b"bc", b"ab"))("abc") == 2


def test_a_tokenizer_json_counts_as_its_package_does(tmp_path: Path) -> None:
    tokenizer = Tokenizer(WordLevel({"[UNK]": 0, "one": 1, "two": 2}, "[UNK]"))
    tokenizer.pre_tokenizer = Whitespace()
    path = tmp_path / "tokenizer.json"
    tokenizer.save(str(path))
    assert counter(path)("one two three") == 3


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("tokenizer.json", b"{}", "no tokenizer.json"),
        ("x.tiktoken", b"version https://git-lfs.github.com/spec/v1\n", "line 1 is not `base64 rank`"),
        ("x.tiktoken", b"IQ== 0\n", "a rank for each of the 256 bytes"),
        ("absent.tiktoken", None, "No such file"),
    ],
)
def test_what_is_no_tokenizer_is_named(tmp_path: Path, name: str, content: bytes | None, said: str) -> None:
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(TokenizerError, match=said):
        counter(path)
    assert count_stream(path, b"", 0) is None


def test_text_is_found_in_the_events_of_every_dialect() -> None:
    events = (
        b'data: {"model":"m","choices":[{"delta":{"role":"assistant","content":"a"}}]}\n\n'
        b'data: {"choices":[{"delta":{"tool_calls":[{"id":"x","function":{"name":"f","arguments":"{}"}}]}}]}\r\n\r\n'
        b'event: content_block_delta\ndata: {"type":"content_block_delta","delta":{"type":"text_delta","text":"b"}}\n\n'
        b'data: {"type":"response.output_text.delta","delta":"c"}\n\n'
        b'data: {"choices":[{"text":"d"}]}\n\n: keep-alive\n\ndata: [DONE]\n\ndata: {"cut'
    )
    assert "".join(text_of(events)) == "a{}bcd"


def test_an_answer_in_one_piece_is_counted_as_its_stream_is(tmp_path: Path) -> None:
    path = tiktoken_file(tmp_path)
    body = b'{"choices":[\n{"message":{"content":"abcd","reasoning":"ef","reasoning_content":"ef"}}],\r\n"model":"m"}'
    assert count_answer(path, body) == 6
    assert count_answer(path, b"no json") == 0


def test_what_was_not_kept_is_added_in_proportion(tmp_path: Path) -> None:
    path = tiktoken_file(tmp_path)
    heard = b'data: {"choices":[{"delta":{"content":"abcd"}}]}\n\n'
    assert count_stream(path, heard, len(heard)) == 4
    assert count_stream(path, heard, 3 * len(heard)) == 12
