"""A message of the wrong shape is refused by the place that is wrong."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from local_engine.chat_messages import prepare
from local_engine.errors import RequestError

CALL = {"id": "1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Bern"}'}}


@pytest.mark.parametrize(
    ("message", "param", "text"),
    [
        (1, "messages[3]", "messages[3] must be an object, got number."),
        (None, "messages[3]", "messages[3] must be an object, got null."),
        ([], "messages[3]", "messages[3] must be an object, got list."),
        ({"content": "x"}, "messages[3].role", "messages[3].role is missing: say who speaks, such as 'user'."),
        ({"role": None, "content": "x"}, "messages[3].role", "messages[3].role is missing: say who speaks"),
        ({"role": 1, "content": "x"}, "messages[3].role", "messages[3].role must be a string, got number."),
        ({"role": "user"}, "messages[3].content", "messages[3].content is missing."),
        ({"role": "user", "content": None}, "messages[3].content", "messages[3].content is missing."),
        (
            {"role": "user", "content": 5},
            "messages[3].content",
            "must be a string or a list of text parts, got number.",
        ),
        ({"role": "user", "content": {"type": "text"}}, "messages[3].content", "a list of text parts, got object."),
        ({"role": "user", "content": ["x"]}, "messages[3].content[0]", "must be an object, got string."),
        ({"role": "user", "content": [None]}, "messages[3].content[0]", "must be an object, got null."),
        ({"role": "user", "content": [{}]}, "messages[3].content[0]", "holds a part of type None"),
        ({"role": "user", "content": [{"type": "text"}]}, "messages[3].content[0].text", "a string, got null."),
        ({"role": "user", "content": [{"type": "text", "text": 1}]}, "messages[3].content[0].text", "got number."),
        ({"role": "user", "content": "x", "name": True}, "messages[3].name", "must be a string, got boolean."),
        ({"role": "assistant", "tool_calls": {}}, "messages[3].tool_calls", "must be a list, got object."),
        ({"role": "assistant", "tool_calls": [7]}, "messages[3].tool_calls[0]", "must be an object, got number."),
        ({"role": "assistant", "tool_calls": [{}]}, "messages[3].tool_calls[0].function", "an object, got null."),
        (
            {"role": "assistant", "tool_calls": [{"function": {}}]},
            "messages[3].tool_calls[0].function.name",
            "must be a string, got null.",
        ),
        (
            {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": 1}}]},
            "messages[3].tool_calls[0].function.arguments",
            "must be JSON in a string, got number.",
        ),
    ],
)
def test_rule_31_a_message_of_the_wrong_shape_is_refused_by_its_place(message: object, param: str, text: str) -> None:
    with pytest.raises(RequestError) as caught:
        prepare(message, 3)
    assert caught.value.param == param
    assert text in str(caught.value)


def test_content_beside_tool_calls_may_be_null() -> None:
    prepared = prepare({"role": "assistant", "content": None, "tool_calls": [CALL]}, 0)
    assert prepared["content"] == ""
    assert prepared["tool_calls"][0]["function"] == {"name": "weather", "arguments": {"city": "Bern"}}


def test_null_means_absent() -> None:
    message = {"role": "user", "content": "x", "name": None, "tool_calls": None, "function_call": None}
    assert prepare(message, 0) == {"role": "user", "content": "x"}


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)
FIELDS = st.sampled_from(["role", "content", "name", "tool_calls", "tool_call_id", "function_call"])


@settings(max_examples=300, deadline=None)
@given(JSON | st.dictionaries(FIELDS, JSON | st.just("user") | st.just([CALL])))
def test_any_json_for_a_message_is_prepared_or_refused_by_its_place(message: object) -> None:
    place = None
    try:
        prepared = prepare(message, 0)
    except RequestError as error:
        place = error.param
    if place is None:
        assert isinstance(prepared["role"], str)
        assert isinstance(prepared["content"], str)
        json.dumps(prepared)
    else:
        assert place.startswith("messages[0]")
