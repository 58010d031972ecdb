"""Parsers of calls and of reasoning: what they find does not depend on how the text is cut."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from local_engine.config import REASONING_PARSERS, TOOL_CALL_PARSERS
from local_engine.server.reasoning import Reasoning, ReasoningParser, reasoning_after
from local_engine.server.replies import Piece, Reply
from local_engine.server.tool_calls import ToolParser
from local_engine.server.tool_parsers.forced import NamedParser, RequiredParser
from local_engine.server.tool_parsers.registry import TOOL_PARSERS, new_tool_parser

WEATHER = '{"city": "Köln", "days": [1, 2], "note": "a \\"quoted\\" } brace"}'
TIME = "{}"
TWO = [("weather", WEATHER), ("time", TIME)]
FOUND: dict[str, list[tuple[str, str, list[tuple[str, str]]]]] = {
    "hermes": [
        (f'<tool_call>\n{{"name": "weather", "arguments": {WEATHER}}}\n</tool_call>', "", TWO[:1]),
        (
            f'Let me see.<tool_call>{{"arguments": {WEATHER}, "name": "weather"}}</tool_call>\n'
            f'<tool_call>{{"name": "time", "arguments": {TIME}}}</tool_call>',
            "Let me see.",
            TWO,
        ),
        (f'<tool_call>{{"name": "weather", "arguments": {WEATHER}}}', "", TWO[:1]),
        ("No call: 1 < 2, <b>bold</b>, {x}", "No call: 1 < 2, <b>bold</b>, {x}", []),
        ("<tool_call>no json</tool_call>", "<tool_call>no json</tool_call>", []),
        ("<tool_ca", "<tool_ca", []),
    ],
    "llama3_json": [
        (f'{{"name": "weather", "parameters": {WEATHER}}}', "", TWO[:1]),
        (
            f'<|python_tag|>{{"name": "weather", "parameters": {WEATHER}}}; {{"name": "time", "parameters": {TIME}}}',
            "",
            TWO,
        ),
        (f'{{"type": "function", "name": "weather", "parameters": {WEATHER}}}', "", TWO[:1]),
        ('{"answer": 42}', '{"answer": 42}', []),
        ("Hello {name}", "Hello {name}", []),
        ("{", "{", []),
    ],
    "mistral": [
        (
            f'[TOOL_CALLS][{{"name": "weather", "arguments": {WEATHER}}}, {{"name": "time", "arguments": {TIME}}}]',
            "",
            TWO,
        ),
        (f"Sure.[TOOL_CALLS]weather{WEATHER}[TOOL_CALLS]time{TIME}", "Sure.", TWO),
        (f"[TOOL_CALLS]weather[ARGS]{WEATHER}", "", TWO[:1]),
        ("[TOOL] is a word", "[TOOL] is a word", []),
    ],
    "pythonic": [
        ('[weather(city="Köln", days=[1, 2], note="a \\"quoted\\" } brace"), time()]', "", TWO),
        ("[time()]", "", TWO[1:]),
        ("[1, 2, 3]", "[1, 2, 3]", []),
        ("[see note] text", "[see note] text", []),
        ("Plain text.", "Plain text.", []),
    ],
}
CASES = [(name, *case) for name, cases in FOUND.items() for case in cases]


def read(parser: ToolParser, pieces: list[str]) -> tuple[str, list[tuple[str | None, object]]]:
    reply = Reply(tools=parser)
    said = Piece()
    for piece in pieces:
        said += reply.feed(piece)
    message = (said + reply.flush()).message()
    calls = [call["function"] for call in message.get("tool_calls", [])]
    return message["content"] or "", [(call["name"], json.loads(call["arguments"])) for call in calls]


def cut(text: str, cuts: list[int]) -> list[str]:
    edges = sorted({0, len(text), *(at % (len(text) + 1) for at in cuts)})
    return [text[start:end] for start, end in pairwise(edges)]


@pytest.mark.parametrize(("name", "text", "content", "calls"), CASES)
@settings(max_examples=25, deadline=None)
@given(cuts=st.lists(st.integers(0, 1000), max_size=30))
def test_calls_are_found_however_the_text_is_cut(
    name: str, text: str, content: str, calls: list[tuple[str, str]], cuts: list[int]
) -> None:
    expected = content, [(call, json.loads(arguments)) for call, arguments in calls]
    for pieces in (cut(text, cuts), list(text), [text]):
        assert read(new_tool_parser(name), pieces) == expected


SHARDS = [
    "<tool_call>", "</tool_call>", "[TOOL_CALLS]", "<|python_tag|>", '"name": "f"', '"arguments": {}',
    "{", "}", '"', "name", ":", ",", "[", "]", "(", ")", "=", "a", " ", "\n", "\\",
]  # fmt: skip


@settings(max_examples=400, deadline=None)
@given(st.sampled_from(sorted(TOOL_PARSERS)), st.data())
def test_any_text_is_read_to_its_end_and_cuts_change_nothing(name: str, data: st.DataObject) -> None:
    text = "".join(data.draw(st.lists(st.sampled_from(SHARDS), max_size=14)))
    cuts = data.draw(st.lists(st.integers(0, 300), max_size=10))

    def outcome(pieces: list[str]) -> tuple[str, list[tuple[str | None, str]]]:
        reply = Reply(tools=new_tool_parser(name))
        said = Piece()
        for piece in pieces:
            said += reply.feed(piece)
        message = (said + reply.flush()).message()
        calls = [call["function"] for call in message.get("tool_calls", [])]
        return message["content"] or "", [(call["name"], call["arguments"]) for call in calls]

    assert outcome(cut(text, cuts)) == outcome([text])


def test_arguments_stream_as_they_are_written() -> None:
    reply = Reply(tools=new_tool_parser("hermes"))
    pieces = ['<tool_call>{"name": "f", "arguments": {"a', '": "lo', 'ng"}}', "</tool_call>"]
    calls = [[(call.name, call.arguments) for call in reply.feed(piece).calls] for piece in pieces]
    assert calls == [[("f", '{"a')], [(None, '": "lo')], [(None, 'ng"}')], []]


def test_required_and_named_calls_come_out_of_what_the_grammar_made() -> None:
    text = f'[{{"name":"weather","parameters":{WEATHER}}},{{"name":"time","parameters":{TIME}}}]'
    expected = "", [(call, json.loads(arguments)) for call, arguments in TWO]
    assert read(RequiredParser(), list(text)) == read(RequiredParser(), [text]) == expected
    assert read(NamedParser("weather"), list(WEATHER)) == ("", [("weather", json.loads(WEATHER))])


THOUGHTS = [
    ("qwen3", "", "<think>\nhm\n</think>\n\nYes.", "\nhm\n", "\n\nYes."),
    ("qwen3", "", "Yes, 1 < 2.", "", "Yes, 1 < 2."),
    ("qwen3", "", "<think>never ends", "never ends", ""),
    ("qwen3", "", "<thin", "", "<thin"),
    ("qwen3", "<think>\n", "hm</think>Yes.", "hm", "Yes."),
    ("deepseek_r1", "", "hm</think>Yes.", "hm", "Yes."),
    ("deepseek_r1", "", "<think>hm</think>Yes.", "hm", "Yes."),
    ("deepseek_r1", "<think>\n", "hm < 3 </thi", "hm < 3 </thi", ""),
]


@pytest.mark.parametrize(("name", "prompt", "text", "reasoning", "content"), THOUGHTS)
def test_reasoning_is_parted_from_the_answer(name: str, prompt: str, text: str, reasoning: str, content: str) -> None:
    for pieces in ([text], list(text), [text[:5], text[5:9], text[9:]]):
        reply = Reply(ReasoningParser(reasoning_after(f"<|assistant|>{prompt}", name)))
        said = Piece()
        for piece in pieces:
            said += reply.feed(piece)
        said += reply.flush()
        assert (said.reasoning, said.content) == (reasoning, content)


@pytest.mark.parametrize("name", REASONING_PARSERS)
def test_a_prompt_that_has_closed_the_tag_leaves_no_reasoning(name: str) -> None:
    assert reasoning_after("<|assistant|>\n<think>\n\n</think>\n\n", name) is Reasoning.NONE
    assert reasoning_after("<think>", None) is Reasoning.NONE


def test_calls_after_reasoning_are_found() -> None:
    reply = Reply(ReasoningParser(Reasoning.POSSIBLE), new_tool_parser("hermes"))
    text = '<think>call it</think><tool_call>{"name": "time", "arguments": {}}</tool_call>'
    said = Piece()
    for piece in text:
        said += reply.feed(piece)
    said += reply.flush()
    assert (said.reasoning, [call.name for call in said.calls][:1], reply.ends_with_calls) == (
        "call it",
        ["time"],
        True,
    )


def test_every_parser_that_a_flag_names_is_there() -> None:
    makers: dict[str, Callable[[], ToolParser]] = dict(TOOL_PARSERS)
    assert tuple(makers) == TOOL_CALL_PARSERS
    assert REASONING_PARSERS == ("deepseek_r1", "qwen3")
