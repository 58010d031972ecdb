"""The engine from Python: real processes, vLLM's shape, the server's rules."""

from __future__ import annotations

import gc
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from local_engine.errors import ConfigError, EngineError, ModelError, RequestError
from local_engine.llm import LLM, Prompt, SamplingParams

from .server.running import is_alive
from .tiny import CRASH_PROMPT, END

TINY, DICE = ((sys.executable, "-m", f"tests.local_engine.{name}") for name in ("tiny", "dice"))


@pytest.fixture(scope="module")
def parrot(tiny_folder: Path) -> Iterator[LLM]:
    with LLM(str(tiny_folder), core_command=TINY, dtype="float32", device="cpu", num_blocks_override=64) as llm:
        yield llm


def test_prompts_in_every_form_are_answered_in_their_order(parrot: LLM) -> None:
    asked = SamplingParams(max_tokens=5)
    prompts: list[Prompt] = ["hello", [65, 66], {"prompt": "ä"}, {"prompt_token_ids": [67]}]
    answers = parrot.generate(prompts, asked)
    assert [answer.outputs[0].text for answer in answers] == ["hello", "AB", "ä", "C"]
    assert [answer.prompt for answer in answers] == ["hello", None, "ä", None]
    assert answers[0].outputs[0].finish_reason == "length" and answers[1].outputs[0].finish_reason == "stop"
    assert answers[1].prompt_token_ids == [65, 66] and answers[1].outputs[0].token_ids == (65, 66, END)
    assert [answer.outputs[0].text for answer in parrot.generate([65, 66])] == ["AB"]
    assert (answers[0].usage.prompt_tokens, answers[0].usage.completion_tokens) == (5, 5)
    assert parrot.generate([]) == []


def test_more_prompts_than_seats_and_each_with_its_own_parameters(parrot: LLM) -> None:
    prompts = [f"{number} bottles" for number in range(600)]
    params = [SamplingParams(max_tokens=1 + number % 9) for number in range(600)]
    answers = parrot.generate(prompts, params)
    assert [answer.outputs[0].text for answer in answers] == [
        prompt[: 1 + number % 9] for number, prompt in enumerate(prompts)
    ]
    with pytest.raises(ConfigError, match="600 prompts with 1 sets"):
        parrot.generate(prompts, params[:1])


def test_a_conversation_goes_through_the_template(parrot: LLM) -> None:
    turn = [{"role": "user", "content": "hi"}]
    (one,) = parrot.chat(turn)
    assert "hi" in one.outputs[0].text
    assert [answer.outputs[0].text for answer in parrot.chat([turn, turn])] == [one.outputs[0].text] * 2


def test_choices_seeds_logprobs_and_grammars_are_the_servers(tiny_folder: Path) -> None:
    with LLM(str(tiny_folder), core_command=DICE, device="cpu") as llm:
        (answer,) = llm.generate("x", SamplingParams(n=3, seed=5, max_tokens=6, logprobs=2))
        (again,) = llm.generate("x", SamplingParams(n=3, seed=5, max_tokens=6, logprobs=2))
        assert answer.outputs == again.outputs and len({output.token_ids for output in answer.outputs}) == 3
        for output in answer.outputs:
            told = output.logprobs or []
            assert [next(iter(each)) for each in told] == list(output.token_ids)
            assert all(min(logprob.rank for logprob in each.values()) == 1 for each in told)
        (choice,) = llm.generate("x", SamplingParams(guided_choice=["red", "green"], seed=1))
        assert choice.outputs[0].text in ("red", "green")


def test_what_cannot_be_served_is_refused_by_name_and_the_rest_lives_on(parrot: LLM) -> None:
    with pytest.raises(RequestError, match="temperature"):
        parrot.generate("x", SamplingParams(temperature=-1))
    with pytest.raises(RequestError, match="Unknown parameter: 'temprature'"):
        parrot.generate("x", SamplingParams(temprature=1))
    with pytest.raises(RequestError, match="maximum context length is 512 tokens"):
        parrot.generate(["fine", "x" * 600])
    with pytest.raises(EngineError, match="asked to crash"):
        parrot.generate([[*CRASH_PROMPT, 1], [65]])
    assert parrot.generate("ok")[0].outputs[0].text == "ok"


def test_a_closed_one_has_no_process_and_says_so(tiny_folder: Path) -> None:
    llm = LLM(str(tiny_folder), core_command=TINY, device="cpu")
    core = llm._service.engine._cores[0]._core
    assert core is not None and is_alive(core.pid)
    llm.close()
    llm.close()
    assert not is_alive(core.pid)
    with pytest.raises(EngineError, match="was closed"):
        llm.generate("x")
    forgotten = LLM(str(tiny_folder), core_command=TINY, device="cpu")
    core = forgotten._service.engine._cores[0]._core
    del forgotten
    gc.collect()
    assert core is not None and not is_alive(core.pid)


def test_a_program_that_closes_nothing_ends_quietly_and_leaves_no_process(tiny_folder: Path) -> None:
    program = (
        "from local_engine.llm import LLM\n"
        f"llm = LLM({str(tiny_folder)!r}, core_command={TINY!r}, device='cpu')\n"
        "print(llm.generate('ok')[0].outputs[0].finish_reason, llm._service.engine._cores[0]._core.pid)\n"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False)
    finish_reason, core = ended.stdout.split()[-2:]
    assert (ended.returncode, finish_reason) == (0, "length")
    assert "Traceback" not in ended.stderr
    assert not is_alive(int(core))


def test_what_is_wrong_at_start_is_said(tiny_folder: Path) -> None:
    with pytest.raises(ConfigError, match="LLM has no setting modle_len; it has .*max_model_len"):
        LLM(str(tiny_folder), modle_len=3)
    with pytest.raises(ModelError, match="git-LFS pointer"):
        LLM(str(tiny_folder), core_command=TINY, device="cpu", kv_cache_dtype="fp8")
