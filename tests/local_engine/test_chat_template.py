from __future__ import annotations

import pytest

from local_engine.chat_template import ChatTemplate
from local_engine.errors import ChatTemplateError, ConfigError, RequestError
from local_engine.tokenizer import SpecialTokens

SPECIAL = SpecialTokens(bos="<s>", eos="</s>", eos_ids=(2,), extra={"pad_token": "<pad>"})
CHATML = (
    "{{ bos_token }}{% for m in messages %}<|{{ m['role'] }}|>{{ m['content'] }}{{ eos_token }}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def user(content: object) -> dict[str, object]:
    return {"role": "user", "content": content}


def test_messages_become_the_prompt() -> None:
    assert ChatTemplate(CHATML, SPECIAL).render([user("hi")]) == "<s><|user|>hi</s><|assistant|>"


def test_rule_41_a_template_that_refuses_speaks_in_its_own_words() -> None:
    template = ChatTemplate("{{ raise_exception('Conversation roles must alternate') }}", SPECIAL)
    with pytest.raises(ChatTemplateError, match=r"^Conversation roles must alternate$") as caught:
        template.render([user("hi")])
    assert caught.value.param == "messages"


def test_a_message_that_the_template_cannot_read_is_the_callers_error() -> None:
    template = ChatTemplate("{{ 'x' + messages[0]['mood'] }}", SPECIAL)
    with pytest.raises(ChatTemplateError, match="cannot render these messages"):
        template.render([user("hi")])


def test_rule_41_tool_call_arguments_are_parsed_before_rendering() -> None:
    template = ChatTemplate("{{ messages[0].tool_calls[0].function.arguments.city }}", SPECIAL)
    call = {"id": "1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Bern"}'}}
    assert template.render([{"role": "assistant", "content": None, "tool_calls": [call]}]) == "Bern"
    broken = {**call, "function": {"name": "weather", "arguments": "{"}}
    with pytest.raises(RequestError, match=r"messages\[0\].tool_calls\[0\].function.arguments is no JSON"):
        template.render([{"role": "assistant", "tool_calls": [broken]}])


def test_text_parts_are_joined_and_other_parts_refused() -> None:
    template = ChatTemplate("{{ messages[0].content }}", SPECIAL)
    assert template.render([user([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}])]) == "a\nb"
    with pytest.raises(RequestError, match="a part of type 'image_url'; this model takes text only"):
        template.render([user([{"type": "image_url", "image_url": {"url": "x"}}])])


def test_rule_29_a_prompt_is_data_and_no_template() -> None:
    text = "{{ 7 * 7 }}{% raise %}"
    assert ChatTemplate("{{ messages[0].content }}", SPECIAL).render([user(text)]) == text


def test_the_sandbox_keeps_python_out_of_reach() -> None:
    template = ChatTemplate("{{ messages.__class__.__mro__[1].__subclasses__() }}", SPECIAL)
    with pytest.raises(ChatTemplateError, match=r"access to attribute '__class__'|unsafe"):
        template.render([user("hi")])
    changing = ChatTemplate("{{ messages.append(1) }}", SPECIAL)
    with pytest.raises(ChatTemplateError):
        changing.render([user("hi")])


def test_the_last_message_can_be_continued() -> None:
    template = ChatTemplate(CHATML, SPECIAL)
    messages: list[dict[str, object]] = [user("hi"), {"role": "assistant", "content": "I am"}]
    rendered = template.render(messages, add_generation_prompt=False, continue_final_message=True)
    assert rendered == "<s><|user|>hi</s><|assistant|>I am"


def test_a_broken_template_is_found_at_start() -> None:
    with pytest.raises(ConfigError, match="the chat template does not compile"):
        ChatTemplate("{% for %}", SPECIAL)


def test_tojson_keeps_html_and_chinese_as_they_are() -> None:
    template = ChatTemplate("{{ messages[0].content | tojson }}", SPECIAL)
    assert template.render([user("<你>")]) == '"<你>"'
