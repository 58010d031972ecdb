"""SentencePiece's tokenizers out of GGUF: token for token what the sentencepiece library says, and what transformers says."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import pytest
import sentencepiece
from gguf import GGUFWriter
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import LlamaTokenizer

from local_engine.detokenizer import IncrementalDetokenizer
from local_engine.errors import TokenizerError
from local_engine.quantiser.perplexity import CALIBRATION, EVALUATION, text
from local_engine.tokenizer import Tokenizer, load_tokenizer

TURN, GAP = "<turn>", "\u2581\u2581\u2581"
SCRIPTS = "Grüße aus Köln, naïve café. Привет, мир. 你好，世界。 こんにちは 😀👩‍👩‍👧 1234 3.14 x  y   z\tt"
PIECES = ("▁", " ", "  ", "the", "ing", " and ", "<0x0A>", "<unk>", "\n", "\t", "é", "ß", "你好", "😀", "0", "19")
TEXTS = st.lists(st.one_of(st.sampled_from(PIECES), st.text(max_size=8)), max_size=12).map("".join)


@dataclass
class Trained:
    """The same model as sentencepiece has it, and as our reading of its GGUF."""

    oracle: sentencepiece.SentencePieceProcessor
    folder: Path
    ours: Tokenizer

    def ids(self, said: str) -> list[int]:
        return list(self.oracle.encode(said))


def train(folder: Path, *, prefix: bool, defined: list[str]) -> Trained:
    """With Llama's settings."""
    corpus = folder / "corpus.txt"
    lines = (text(CALIBRATION) + text(EVALUATION) + SCRIPTS).splitlines()
    corpus.write_text("\n".join(line for line in lines if line), encoding="utf-8")
    sentencepiece.SentencePieceTrainer.train(
        input=str(corpus), model_prefix=str(folder / "tokenizer"), model_type="bpe", vocab_size=620, byte_fallback=True,
        normalization_rule_name="identity", remove_extra_whitespaces=False, add_dummy_prefix=prefix, split_digits=True,
        allow_whitespace_only_pieces=True, character_coverage=0.99, user_defined_symbols=defined, minloglevel=2,
        num_threads=1, hard_vocab_limit=False,
    )  # fmt: skip
    oracle = sentencepiece.SentencePieceProcessor(model_file=str(folder / "tokenizer.model"))
    return Trained(oracle, folder, load_tokenizer(write_vocabulary(folder / "m.gguf", oracle, prefix=prefix)))


def write_vocabulary(
    path: Path, oracle: sentencepiece.SentencePieceProcessor, *, prefix: bool, add_eos: bool = False
) -> Path:
    """As llama.cpp's converter does (conversion/base.py, `_set_vocab_sentencepiece`)."""
    writer = GGUFWriter(str(path), "llama")
    writer.add_tokenizer_model("llama")
    writer.add_tokenizer_pre("default")
    add_pieces(writer, oracle)
    writer.add_add_space_prefix(prefix)
    if add_eos:
        writer.add_add_eos_token(True)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return path


def add_pieces(writer: GGUFWriter, oracle: sentencepiece.SentencePieceProcessor) -> None:
    count = oracle.vocab_size()
    kinds = [
        2 if oracle.IsUnknown(i) else 3 if oracle.IsControl(i) else 5 if oracle.IsUnused(i) else 6 if oracle.IsByte(i) else 1
        for i in range(count)
    ]  # fmt: skip
    pieces = [oracle.IdToPiece(i) for i in range(count)]
    kinds = [4 if piece in (TURN, GAP) else kind for piece, kind in zip(pieces, kinds, strict=True)]
    writer.add_token_list([piece.encode() for piece in pieces])
    writer.add_token_scores([oracle.GetScore(i) for i in range(count)])
    writer.add_token_types(kinds)
    writer.add_bos_token_id(oracle.bos_id())
    writer.add_eos_token_id(oracle.eos_id())
    writer.add_unk_token_id(oracle.unk_id())


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    return train(tmp_path_factory.mktemp("llama"), prefix=True, defined=[])


@pytest.fixture(scope="module")
def gemma(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """No space before the text; pieces that the user defined, one of spaces."""
    return train(tmp_path_factory.mktemp("gemma"), prefix=False, defined=[TURN, GAP])


def plain(said: str) -> bool:
    """Without the marks that stand for something else: a text's own U+2581, and special tokens (the library knows none)."""
    return "\u2581" not in said and not any(mark in said for mark in ("<unk>", "<s>", "</s>"))


@settings(max_examples=300, deadline=None)
@given(TEXTS.filter(plain))
def test_tokens_are_those_of_the_library(llama: Trained, said: str) -> None:
    assert llama.ours.encode(said, add_special_tokens=False) == llama.ids(said)


@settings(max_examples=300, deadline=None)
@given(TEXTS.filter(plain), st.sampled_from([TURN, GAP, "   ", ""]))
def test_pieces_that_the_user_defined_are_found_whole(gemma: Trained, said: str, defined: str) -> None:
    whole = said + defined.replace("\u2581", " ") + said
    assert gemma.ours.encode(whole, add_special_tokens=False) == gemma.ids(whole)


def test_long_texts_agree_too(llama: Trained, gemma: Trained) -> None:
    for said in (text(CALIBRATION), text(EVALUATION), SCRIPTS):
        for trained in (llama, gemma):
            assert trained.ours.encode(said, add_special_tokens=False) == trained.ids(said)


@settings(max_examples=150, deadline=None)
@given(TEXTS.filter(plain))
def test_what_is_encoded_is_decoded_at_once_and_in_pieces(llama: Trained, gemma: Trained, said: str) -> None:
    for trained in (llama, gemma):
        ids = trained.ours.encode(said)
        assert trained.ours.decode(ids) == said
        detokenizer = IncrementalDetokenizer(trained.ours)
        streamed = "".join(detokenizer.feed(token) for token in ids) + detokenizer.flush()
        assert streamed == (f" {said}" if trained is llama and said else said), "a stream goes on after a prompt"


@settings(max_examples=100, deadline=None)
@given(TEXTS.filter(lambda said: re.search("(^|>)[ \u2581]", said) is None))
def test_tokens_are_those_of_transformers(llama: Trained, said: str) -> None:
    """At the beginning and after a special token transformers leaves a space before another out, as sentencepiece does not."""
    theirs = transformers_of(llama.folder)
    assert llama.ours.encode(said, add_special_tokens=False) == theirs.encode(said, add_special_tokens=False)


@settings(max_examples=100, deadline=None)
@given(TEXTS.filter(plain), TEXTS.filter(plain))
def test_special_tokens_part_a_text_into_texts(llama: Trained, gemma: Trained, before: str, after: str) -> None:
    """As in llama.cpp: a space stands before each of them."""
    for trained in (llama, gemma):
        ids = trained.ours.encode(f"<s>{before}</s>{after}", add_special_tokens=False)
        assert ids == [1, *trained.ids(before), 2, *trained.ids(after)]


def transformers_of(folder: Path) -> LlamaTokenizer:
    if folder not in _MADE:
        _MADE[folder] = LlamaTokenizer.from_pretrained(folder, legacy=True)
    return _MADE[folder]


_MADE: dict[Path, LlamaTokenizer] = {}


def test_bos_is_put_before_a_text_unless_the_file_says_no_and_eos_after_it_where_it_says_so(
    llama: Trained, tmp_path: Path
) -> None:
    assert llama.ours.encode("a")[0] == llama.ours.special_id("<s>") == 1
    assert llama.ours.special.eos == "</s>" and llama.ours.special.eos_ids == (2,)
    both = load_tokenizer(write_vocabulary(tmp_path / "b.gguf", llama.oracle, prefix=True, add_eos=True))
    assert both.encode("a") == [1, *llama.ids("a"), 2]


def test_lists_that_do_not_fit_together_are_named(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    writer = GGUFWriter(str(path), "llama")
    writer.add_tokenizer_model("llama")
    writer.add_token_list([b"<unk>", b"a"])
    writer.add_token_scores([0.0])
    writer.add_token_types([2, 1])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    with pytest.raises(TokenizerError, match="2 pieces, 1 scores and 2 kinds of them: fetch the file again"):
        load_tokenizer(path)
