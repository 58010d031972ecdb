from __future__ import annotations

import json
from pathlib import Path

import pytest

from local_engine.errors import TokenizerError
from local_engine.tokenizer import Tokenizer, load_tokenizer

from .tiny import END, EXTRA_END, TEMPLATE, VOCAB, write_model_folder


def test_a_folder_gives_tokens_special_tokens_and_template(tiny_tokenizer: Tokenizer) -> None:
    assert tiny_tokenizer.encode("Aé<|end|>") == [65, 0xC3, 0xA9, END]
    assert tiny_tokenizer.decode([65, END], skip_special_tokens=False) == "A<|end|>"
    assert tiny_tokenizer.special.eos == "<|end|>"
    assert tiny_tokenizer.vocab_size == VOCAB
    assert tiny_tokenizer.chat_template == TEMPLATE


def test_rule_38_all_end_ids_of_the_generation_config_are_known(tiny_tokenizer: Tokenizer) -> None:
    assert tiny_tokenizer.special.eos_ids == (END, EXTRA_END)


def test_every_token_knows_its_bytes(tiny_tokenizer: Tokenizer) -> None:
    assert [tiny_tokenizer.bytes_of(id) for id in (65, 0xC3, END, VOCAB + 7)] == [b"A", b"\xc3", b"<|end|>", b""]


def test_a_folder_without_tokenizer_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(TokenizerError, match=r"has no tokenizer.json: copy it from the model's repository"):
        load_tokenizer(tmp_path)


def test_a_broken_tokenizer_is_named(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(TokenizerError, match=r"tokenizer.json cannot be read as a tokenizer"):
        load_tokenizer(tmp_path)


def test_sampling_defaults_come_from_the_generation_config(tmp_path: Path) -> None:
    folder = write_model_folder(tmp_path)
    (folder / "generation_config.json").write_text(json.dumps({"temperature": 0.6, "top_p": 0.9, "eos_token_id": 3}))
    tokenizer = load_tokenizer(folder)
    assert dict(tokenizer.sampling_defaults) == {"temperature": 0.6, "top_p": 0.9}
    assert tokenizer.special.eos_ids == (3, END)


def test_a_template_beside_the_tokenizer_wins(tmp_path: Path) -> None:
    folder = write_model_folder(tmp_path)
    (folder / "chat_template.jinja").write_text("beside")
    assert load_tokenizer(folder).chat_template == "beside"
