"""Text to token ids and back, from the files beside (or inside) the weights. Imports no torch.

Sources, in this order: a .gguf file's metadata (tokenizer_gguf.py), or a folder's `tokenizer.json` with
`tokenizer_config.json`, `generation_config.json` and `config.json`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import tokenizers

from .errors import TokenizerError


@dataclass(frozen=True, slots=True)
class SpecialTokens:
    """What the model's own files say about its special tokens."""

    bos: str | None
    eos: str | None
    eos_ids: tuple[int, ...]
    """Every id that ends a turn: generation config, model config and tokenizer together."""
    extra: Mapping[str, str] = field(default_factory=dict)
    """Further names a template may use: pad_token, unk_token, …"""


class Tokenizer:
    """One model's tokenizer. Thread-safe: it holds nothing of a request."""

    def __init__(
        self, backend: tokenizers.Tokenizer, special: SpecialTokens, template: str | None, defaults: Mapping[str, Any]
    ) -> None:
        self._backend = backend
        self.special = special
        self.chat_template = template
        self.sampling_defaults = defaults
        """temperature, top_p, top_k, min_p, repetition_penalty of the model's generation config, where it has them."""
        self.vocab_size = backend.get_vocab_size(with_added_tokens=True)
        added = backend.get_added_tokens_decoder()
        self.special_ids = frozenset(id_ for id_, token in added.items() if token.special)
        self._added = {id_: token.content for id_, token in added.items()}
        self._byte_level = _is_byte_level(backend)
        self._bytes_of = lru_cache(maxsize=None)(self._compute_bytes)

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """By the batch, which alone lets other threads run meanwhile: a second for each 2 MB."""
        (encoding,) = self._backend.encode_batch_fast([text], add_special_tokens=add_special_tokens)
        ids: list[int] = encoding.ids
        return ids

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """By the batch, as in `encode`."""
        (text,) = self._backend.decode_batch([list(ids)], skip_special_tokens=skip_special_tokens)
        assert isinstance(text, str)
        return text

    def save(self, path: Path) -> None:
        """As a tokenizer.json."""
        self._backend.save(str(path))

    def token(self, token_id: int) -> str | None:
        """The token as the vocabulary spells it, or None for an id without one."""
        text: str | None = self._backend.id_to_token(token_id)
        return text

    def special_id(self, text: str) -> int | None:
        """The id of the special token that is spelt so; None where there is none."""
        token_id: int | None = self._backend.token_to_id(text)
        return token_id if token_id in self.special_ids else None

    def bytes_of(self, token_id: int) -> bytes:
        """The UTF-8 bytes (perhaps part of a character) that the token stands for; empty for an id without a token."""
        return self._bytes_of(token_id)

    def _compute_bytes(self, token_id: int) -> bytes:
        added = self._added.get(token_id)
        if added is not None:
            return added.encode()
        text = self.token(token_id)
        if text is None:
            return b""
        if self._byte_level:
            table = _byte_of_character()
            if all(character in table for character in text):
                return bytes(table[character] for character in text)
            return text.encode()
        if len(text) == 6 and text.startswith("<0x") and text.endswith(">"):
            return bytes([int(text[3:5], 16)])
        return text.replace("\u2581", " ").encode()


def load_tokenizer(path: Path) -> Tokenizer:
    """The tokenizer of a model folder or .gguf file. Raises `TokenizerError` with the remedy."""
    if path.suffix == ".gguf":
        from .tokenizer_gguf import load_gguf_tokenizer

        return load_gguf_tokenizer(path)
    return _load_folder(path)


def _load_folder(folder: Path) -> Tokenizer:
    source = folder / "tokenizer.json"
    if not source.is_file():
        raise TokenizerError(
            f"{folder} has no tokenizer.json: copy it from the model's repository, or save it there with "
            "transformers' AutoTokenizer.from_pretrained(...).save_pretrained(...)"
        )
    try:
        backend = tokenizers.Tokenizer.from_file(str(source))
    except Exception as error:  # the library raises bare Exception
        raise TokenizerError(f"{source} cannot be read as a tokenizer: {error}") from error
    settings = _read_json(folder / "tokenizer_config.json")
    generation = _read_json(folder / "generation_config.json")
    model = _read_json(folder / "config.json")
    named = {name: _token_text(settings.get(name)) for name in settings if name.endswith("_token")}
    eos = named.pop("eos_token", None)
    ids = [*_ids(generation.get("eos_token_id")), *_ids(model.get("eos_token_id"))]
    if eos is not None and (eos_id := backend.token_to_id(eos)) is not None:
        ids.append(eos_id)
    special = SpecialTokens(
        bos=named.pop("bos_token", None),
        eos=eos,
        eos_ids=tuple(dict.fromkeys(ids)),
        extra={name: text for name, text in named.items() if text is not None},
    )
    keys = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
    defaults = {key: generation[key] for key in keys if generation.get(key) is not None}
    if generation.get("do_sample") is False:
        defaults.pop("temperature", None)
    return Tokenizer(backend, special, _folder_template(folder, settings), defaults)


def _folder_template(folder: Path, settings: Mapping[str, Any]) -> str | None:
    beside = folder / "chat_template.jinja"
    if beside.is_file():
        return beside.read_text(encoding="utf-8")
    template = settings.get("chat_template")
    if isinstance(template, list):
        named = {entry.get("name"): entry.get("template") for entry in template if isinstance(entry, dict)}
        template = named.get("default")
    return template if isinstance(template, str) else None


def _read_json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise TokenizerError(f"{path} cannot be read as JSON: {error}") from error
    return value if isinstance(value, dict) else {}


def _token_text(value: object) -> str | None:
    if isinstance(value, dict):
        value = value.get("content")
    return value if isinstance(value, str) else None


def _ids(value: object) -> list[int]:
    if isinstance(value, int):
        return [value]
    return [item for item in value if isinstance(item, int)] if isinstance(value, list) else []


def _is_byte_level(backend: tokenizers.Tokenizer) -> bool:
    decoder = json.loads(backend.to_str())["decoder"] if backend.decoder is not None else None
    stages = [decoder, *(decoder or {}).get("decoders", [])]
    return any(stage is not None and stage.get("type") == "ByteLevel" for stage in stages)


@lru_cache(maxsize=1)
def _byte_of_character() -> dict[str, int]:
    """GPT-2's byte alphabet, inverted: printable Latin-1 stands for itself, the rest for U+0100 onwards."""
    table: dict[str, int] = {}
    shifted = 0
    for byte in range(256):
        if 33 <= byte <= 126 or 161 <= byte <= 172 or 174 <= byte <= 255:
            table[chr(byte)] = byte
        else:
            table[chr(256 + shifted)] = byte
            shifted += 1
    return table
