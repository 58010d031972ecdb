"""Byte-level tokenizers out of GGUF: texts are split as llama.cpp splits them (its server gave the same tokens for each rule)."""

from __future__ import annotations

from pathlib import Path

import pytest
from gguf import GGUFWriter
from tokenizers import pre_tokenizers

from local_engine.tokenizer import load_tokenizer
from local_engine.tokenizer_gguf import _PRE_TOKENIZERS

SAID = "It'S HelloWorld 12345 a==b//\n  end"
SPLITS: dict[tuple[str, ...], list[str]] = {
    ("default",): ["It", "'", "S", " HelloWorld", " ", "123", "45", " a", "==", "b", "//", "\n ", " end"],
    ("gpt-2",): ["It", "'", "S", " HelloWorld", " 12345", " a", "==", "b", "//", "\n ", " end"],
    ("smollm",): ["It", "'", "S", " HelloWorld", " ", *"12345", " a", "==", "b", "//", "\n ", " end"],
    ("llama-bpe", "llama3", "llama-v3", "pixtral", "dbrx", "smaug-bpe"): [
        "It", "'S", " HelloWorld", " ", "123", "45", " a", "==", "b", "//\n", " ", " end",
    ],
    ("qwen2", "deepseek-r1-qwen"): ["It", "'S", " HelloWorld", " ", *"12345", " a", "==", "b", "//\n", " ", " end"],
    ("tekken",): ["It", "'S", " Hello", "World", " ", *"12345", " a", "==", "b", "//\n", " ", " end"],
    ("gpt-4o",): ["It'S", " Hello", "World", " ", "123", "45", " a", "==", "b", "//\n", " ", " end"],
}  # fmt: skip


@pytest.mark.parametrize("names", SPLITS)
def test_each_rule_splits_as_it_does_in_llama_cpp(names: tuple[str, ...]) -> None:
    for name in names:
        pieces = _PRE_TOKENIZERS[name]().pre_tokenize_str(SAID)
        assert [SAID[start:end] for _, (start, end) in pieces] == SPLITS[names], name


def test_every_rule_is_looked_at() -> None:
    assert {name for names in SPLITS for name in names} == set(_PRE_TOKENIZERS)


@pytest.mark.parametrize(
    ("pre", "said", "begun"),
    [("qwen2", None, False), ("llama-bpe", None, True), ("llama-bpe", False, False), ("gpt-2", True, True)],
)
def test_bos_comes_first_where_the_file_says_so_or_else_where_llama_cpp_puts_it(
    pre: str, said: bool | None, begun: bool, tmp_path: Path
) -> None:
    tokens = ["<bos>", "<eos>", *sorted(pre_tokenizers.ByteLevel.alphabet()), "ab"]
    writer = GGUFWriter(str(tmp_path / "m.gguf"), "llama")
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(tokens)
    writer.add_token_types([3, 3, *([1] * 257)])
    writer.add_token_merges(["a b"])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(1)
    if said is not None:
        writer.add_add_bos_token(said)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    tokenizer = load_tokenizer(tmp_path / "m.gguf")
    assert tokenizer.encode("x") == [*([0] if begun else []), tokens.index("x")]
    assert tokenizer.encode("x", add_special_tokens=False) == [tokens.index("x")]
