"""Whole chat completions, written by the adapters of providers that speak something else."""

from __future__ import annotations

import time
from typing import Any

from billing.usage import Usage
from gateway.upstream.usage import to_openai_fields


def whole_chat(id: str, model: str, choices: list[Any], usage: Usage | None) -> dict[str, Any]:
    answer: dict[str, Any] = {
        "id": id,
        "object": "chat.completion",
        "created": int(time.time()),
        "model": model,
        "choices": choices,
    }
    if usage is not None:
        answer["usage"] = to_openai_fields(usage)
    return answer
