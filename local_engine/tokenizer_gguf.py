"""A tokenizer out of a GGUF file's metadata, as llama.cpp runs it: byte-level BPE (`gpt2`) or SentencePiece's (`llama`).

For the former, splitting rules by `tokenizer.ggml.pre`, from llama.cpp's src/llama-vocab.cpp. Another name is refused, not
guessed: a wrong split gives plausible text and wrong tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, pre_tokenizers, processors

from .errors import TokenizerError
from .tokenizer import SpecialTokens, Tokenizer
from .tokenizer_spm import CONTROL, SPACE, UNKNOWN, USER_DEFINED, build_spm
from .weights.gguf import read_gguf

_LLAMA3 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_QWEN2 = _LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_WORD = rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+END|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*END"
_CASED = _WORD + r"|NUMBER| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_TEKKEN = _CASED.replace("END", "").replace("NUMBER", r"\p{N}")
_GPT4O = _CASED.replace("END", r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?").replace("NUMBER", r"\p{N}{1,3}")
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_UNNAMED = (r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", r"[0-9][0-9][0-9]")
"""What llama.cpp does with a file that names no rule."""


def _gpt2() -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)


def _smollm() -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), _gpt2()])


def _split(*patterns: str) -> Callable[[], pre_tokenizers.PreTokenizer]:
    """Each cuts the pieces of the one before."""

    def build() -> pre_tokenizers.PreTokenizer:
        return pre_tokenizers.Sequence(
            [
                *(pre_tokenizers.Split(Regex(pattern), behavior="isolated") for pattern in patterns),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
            ]
        )

    return build


_PRE_TOKENIZERS: Mapping[str, Callable[[], pre_tokenizers.PreTokenizer]] = {
    "default": _split(*_UNNAMED),
    "gpt-2": _gpt2,
    "smollm": _smollm,
    "llama-bpe": _split(_LLAMA3),
    "llama3": _split(_LLAMA3),
    "llama-v3": _split(_LLAMA3),
    "pixtral": _split(_LLAMA3),
    "dbrx": _split(_LLAMA3),
    "smaug-bpe": _split(_LLAMA3),
    "qwen2": _split(_QWEN2),
    "deepseek-r1-qwen": _split(_QWEN2),
    "tekken": _split(_TEKKEN),
    "gpt-4o": _split(_GPT4O),
}
_WHOLE_AND_BEGUN = frozenset({"llama-bpe", "llama3", "llama-v3", "pixtral", "tekken"})
"""A piece that is a token is taken whole, whatever the merges say; and texts begin with BOS unless the file says no."""


def load_gguf_tokenizer(path: Path) -> Tokenizer:
    """Raises `TokenizerError` for a kind of tokenizer that is not supported, `ModelError` for a broken file."""
    metadata = read_gguf(path).metadata
    kind = metadata.get("tokenizer.ggml.model")
    if kind is None:
        raise TokenizerError(f"{path} holds no tokenizer: convert the model again with its vocabulary")
    if str(kind) not in _KINDS:
        raise TokenizerError(
            f"{path} has a tokenizer of kind {kind!r}; from GGUF byte-level BPE ('gpt2') and SentencePiece's ('llama') are "
            "read. Serve the model's safetensors folder with its tokenizer.json instead"
        )
    tokens = _strings(path, metadata, "tokenizer.ggml.tokens")
    backend = _KINDS[kind](path, metadata, tokens)
    _add_special_tokens(backend, metadata, tokens)
    special = _special_tokens(metadata, tokens)
    begun = kind == "llama" or metadata.get("tokenizer.ggml.pre") in _WHOLE_AND_BEGUN
    backend.post_processor = _post_processor(metadata, special, tokens, unless_said=begun)
    template = metadata.get("tokenizer.chat_template")
    return Tokenizer(backend, special, template if isinstance(template, str) else None, {})


def _byte_level(path: Path, metadata: Mapping[str, Any], tokens: list[str]) -> tokenizers.Tokenizer:
    pre = metadata.get("tokenizer.ggml.pre", "default")
    build = _PRE_TOKENIZERS.get(str(pre))
    if build is None:
        raise TokenizerError(
            f"{path} splits text by rule {pre!r}, which is not among: {', '.join(sorted(_PRE_TOKENIZERS))}. "
            "Serve the model's safetensors folder with its tokenizer.json instead"
        )
    backend = _bpe(path, metadata, tokens, str(pre))
    backend.pre_tokenizer = build()
    backend.decoder = decoders.ByteLevel()
    return backend


def _sentencepiece(path: Path, metadata: Mapping[str, Any], tokens: list[str]) -> tokenizers.Tokenizer:
    """Pieces that the user defined are matched in the text as it is: with spaces."""
    kinds = _numbers(path, metadata, "tokenizer.ggml.token_type")
    for index, kind in enumerate(kinds[: len(tokens)]):
        if kind == USER_DEFINED:
            tokens[index] = tokens[index].replace(SPACE, " ")
    return build_spm(
        path,
        tokens,
        _numbers(path, metadata, "tokenizer.ggml.scores"),
        kinds,
        space_prefix=metadata.get("tokenizer.ggml.add_space_prefix") is not False,
    )


_KINDS: Mapping[str, Callable[[Path, Mapping[str, Any], list[str]], tokenizers.Tokenizer]] = {
    "gpt2": _byte_level,
    "llama": _sentencepiece,
}


def _post_processor(
    metadata: Mapping[str, Any], special: SpecialTokens, tokens: list[str], *, unless_said: bool
) -> processors.PostProcessor | None:
    """`unless_said`: whether texts begin with BOS in a file that says nothing of it."""
    first = metadata.get("tokenizer.ggml.add_bos_token", unless_said) is True and special.bos is not None
    last = metadata.get("tokenizer.ggml.add_eos_token") is True and special.eos is not None
    around = [token for token, wanted in ((special.bos, first), (special.eos, last)) if wanted and token is not None]
    if not around:
        return None
    single = f"{special.bos if first else ''} $A {special.eos if last else ''}".strip()
    return processors.TemplateProcessing(
        single=single, special_tokens=[(token, tokens.index(token)) for token in dict.fromkeys(around)]
    )


def _bpe(path: Path, metadata: Mapping[str, Any], tokens: list[str], pre: str) -> tokenizers.Tokenizer:
    merges: list[tuple[str, str]] = []
    for merge in _strings(path, metadata, "tokenizer.ggml.merges"):
        left, separator, right = merge.partition(" ")
        if not separator:
            raise TokenizerError(f"{path}: merge {merge!r} is no pair: fetch the file again")
        merges.append((left, right))
    vocabulary = {token: index for index, token in enumerate(tokens)}
    try:
        return tokenizers.Tokenizer(models.BPE(vocab=vocabulary, merges=merges, ignore_merges=pre in _WHOLE_AND_BEGUN))
    except Exception as error:  # the library raises bare Exception
        raise TokenizerError(f"{path}: vocabulary and merges do not fit together: {error}") from error


def _add_special_tokens(backend: tokenizers.Tokenizer, metadata: Mapping[str, Any], tokens: list[str]) -> None:
    types = metadata.get("tokenizer.ggml.token_type", [])
    pairs = list(zip(tokens, types, strict=False))
    backend.add_special_tokens(
        [AddedToken(token, special=True, normalized=False) for token, kind in pairs if kind in (CONTROL, UNKNOWN)]
    )
    backend.add_tokens([AddedToken(token, normalized=False) for token, kind in pairs if kind == USER_DEFINED])


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


def _numbers(path: Path, metadata: Mapping[str, Any], key: str) -> list[Any]:
    values = metadata.get(key)
    if not isinstance(values, list):
        raise TokenizerError(f"{path} has no {key}: convert the model again with its vocabulary")
    return values


def _strings(path: Path, metadata: Mapping[str, Any], key: str) -> list[str]:
    values = metadata.get(key)
    if not isinstance(values, list):
        raise TokenizerError(f"{path} has no {key}: convert the model again with its vocabulary")
    return [str(value) for value in values]
