"""A tokenizer out of a GGUF file's metadata: byte-level BPE as llama.cpp runs it.

Splitting rules by `tokenizer.ggml.pre`, from llama.cpp's src/llama-vocab.cpp. Another name is refused, not guessed: a
wrong split gives plausible text and wrong tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, pre_tokenizers, processors

from .errors import TokenizerError
from .tokenizer import SpecialTokens, Tokenizer
from .weights.gguf import read_gguf

_CONTROL, _USER_DEFINED = 3, 4
_LLAMA3 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_QWEN2 = _LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")


def _gpt2() -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)


def _smollm() -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), _gpt2()])


def _split(pattern: str) -> Callable[[], pre_tokenizers.PreTokenizer]:
    def build() -> pre_tokenizers.PreTokenizer:
        return pre_tokenizers.Sequence(
            [
                pre_tokenizers.Split(Regex(pattern), behavior="isolated"),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
            ]
        )

    return build


_PRE_TOKENIZERS: Mapping[str, Callable[[], pre_tokenizers.PreTokenizer]] = {
    "default": _gpt2,
    "gpt-2": _gpt2,
    "smollm": _smollm,
    "llama-bpe": _split(_LLAMA3),
    "llama3": _split(_LLAMA3),
    "qwen2": _split(_QWEN2),
    "deepseek-r1-qwen": _split(_QWEN2),
}
_IGNORES_MERGES = frozenset({"llama-bpe", "llama3"})


def load_gguf_tokenizer(path: Path) -> Tokenizer:
    """Raises `TokenizerError` for a kind of tokenizer that is not supported, `ModelError` for a broken file."""
    metadata = read_gguf(path).metadata
    kind = metadata.get("tokenizer.ggml.model")
    if kind is None:
        raise TokenizerError(f"{path} holds no tokenizer: convert the model again with its vocabulary")
    if kind != "gpt2":
        raise TokenizerError(
            f"{path} has a tokenizer of kind {kind!r}; from GGUF only byte-level BPE ('gpt2') is read. "
            "Serve the model's safetensors folder with its tokenizer.json instead"
        )
    pre = metadata.get("tokenizer.ggml.pre", "default")
    build = _PRE_TOKENIZERS.get(str(pre))
    if build is None:
        raise TokenizerError(
            f"{path} splits text by rule {pre!r}, which is not among: {', '.join(sorted(_PRE_TOKENIZERS))}. "
            "Serve the model's safetensors folder with its tokenizer.json instead"
        )
    tokens = _strings(path, metadata, "tokenizer.ggml.tokens")
    backend = _bpe(path, metadata, tokens, str(pre))
    backend.pre_tokenizer = build()
    backend.decoder = decoders.ByteLevel()
    _add_special_tokens(backend, metadata, tokens)
    special = _special_tokens(metadata, tokens)
    if metadata.get("tokenizer.ggml.add_bos_token") is True and special.bos is not None:
        backend.post_processor = processors.TemplateProcessing(
            single=f"{special.bos} $A", special_tokens=[(special.bos, tokens.index(special.bos))]
        )
    template = metadata.get("tokenizer.chat_template")
    return Tokenizer(backend, special, template if isinstance(template, str) else None, {})


def _bpe(path: Path, metadata: Mapping[str, Any], tokens: list[str], pre: str) -> tokenizers.Tokenizer:
    merges: list[tuple[str, str]] = []
    for merge in _strings(path, metadata, "tokenizer.ggml.merges"):
        left, separator, right = merge.partition(" ")
        if not separator:
            raise TokenizerError(f"{path}: merge {merge!r} is no pair: fetch the file again")
        merges.append((left, right))
    vocabulary = {token: index for index, token in enumerate(tokens)}
    try:
        return tokenizers.Tokenizer(models.BPE(vocab=vocabulary, merges=merges, ignore_merges=pre in _IGNORES_MERGES))
    except Exception as error:  # the library raises bare Exception
        raise TokenizerError(f"{path}: vocabulary and merges do not fit together: {error}") from error


def _add_special_tokens(backend: tokenizers.Tokenizer, metadata: Mapping[str, Any], tokens: list[str]) -> None:
    types = metadata.get("tokenizer.ggml.token_type", [])
    pairs = list(zip(tokens, types, strict=False))
    backend.add_special_tokens(
        [AddedToken(token, special=True, normalized=False) for token, kind in pairs if kind == _CONTROL]
    )
    backend.add_tokens([AddedToken(token, normalized=False) for token, kind in pairs if kind == _USER_DEFINED])


def _special_tokens(metadata: Mapping[str, Any], tokens: list[str]) -> SpecialTokens:
    def text(name: str) -> str | None:
        index = metadata.get(f"tokenizer.ggml.{name}_token_id")
        return tokens[index] if isinstance(index, int) and 0 <= index < len(tokens) else None

    ids = [metadata.get(f"tokenizer.ggml.{name}_token_id") for name in ("eos", "eot", "eom")]
    extra = {"pad_token": text("padding"), "unk_token": text("unknown")}
    return SpecialTokens(
        bos=text("bos"),
        eos=text("eos"),
        eos_ids=tuple(dict.fromkeys(index for index in ids if isinstance(index, int) and 0 <= index < len(tokens))),
        extra={name: token for name, token in extra.items() if token is not None},
    )


def _strings(path: Path, metadata: Mapping[str, Any], key: str) -> list[str]:
    values = metadata.get(key)
    if not isinstance(values, list):
        raise TokenizerError(f"{path} has no {key}: convert the model again with its vocabulary")
    return [str(value) for value in values]
