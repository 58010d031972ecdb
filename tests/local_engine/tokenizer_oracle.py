"""Compares our reading of the GGUF tokenizer with transformers' own conversion of it. Prints how many texts agree."""

from __future__ import annotations

import sys

from transformers.integrations.gguf.gguf_tokenizer_mapping import convert_gguf_tokenizer, get_gguf_tokenizer

from local_engine.tokenizer import load_tokenizer
from local_engine.weights.model_store import resolve_model

TEXTS = [
    "Hello, world!",
    "It's 2024, and we've got 3.14159 reasons; don't they'll?",
    "  leading and   inner   spaces  ",
    "tabs\tand\nnew lines\n\n\nand \r\n returns",
    "用中文介绍一下你自己，好吗？",
    "😀 emoji 👩‍👩‍👧 and ñ é ü ß",
    "def f(x):\n    return x ** 2  # comment\n",
    "CamelCase snake_case kebab-case",
    "1234567890 12 345 6",
    "a" * 100,
    "Ελληνικά русский العربية हिन्दी",
    "…—“quotes” 'single' `tick`",
]


def main() -> int:
    path = resolve_model("smollm2-135m-instruct")
    architecture, tokenizer, _ = get_gguf_tokenizer(str(path))
    oracle, _ = convert_gguf_tokenizer(architecture, tokenizer)
    ours = load_tokenizer(path)
    for text in TEXTS:
        expected, got = oracle.encode(text, add_special_tokens=False).ids, ours.encode(text)
        if ours.decode(got) != text:
            print(f"{text!r} comes back as {ours.decode(got)!r}", file=sys.stderr)
            return 1
        if expected != got:
            print(f"{text!r}: ours {got}, transformers {expected}", file=sys.stderr)
            return 1
    print(f"{len(TEXTS)} texts agree")
    return 0


if __name__ == "__main__":
    sys.exit(main())
