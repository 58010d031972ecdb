"""Embeddings: how a model's folder says to make them (sentence-transformers' layout), and OpenAI's answer."""

from __future__ import annotations

import base64
import json
import math
from pathlib import Path
from typing import Any, Literal

import numpy as np

from ..errors import ModelError
from ..generation import Generation
from .answers import abort_when_gone, failure
from .http import Request
from .requests import EmbeddingRequest
from .service import Service


def pooling_of(model: Path) -> Literal["last", "mean"] | None:
    """From 1_Pooling/config.json; None where there is none. Raises `ModelError` for a way that needs another kind of model."""
    path = model / "1_Pooling" / "config.json"
    if not path.is_file():
        return None
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
        modes = [name for name, on in values.items() if name.startswith("pooling_mode_") and on is True]
    except (ValueError, AttributeError) as error:
        raise ModelError(f"{path} cannot be read as JSON ({error}): download it again") from error
    if modes == ["pooling_mode_lasttoken"]:
        return "last"
    if modes == ["pooling_mode_mean_tokens"]:
        return "mean"
    raise ModelError(
        f"{path} pools by {', '.join(modes) or 'nothing'}; this engine pools by the last token or the mean"
    )


class Vectors:
    """Waits for the vectors of one request and sends them. The caller's departure aborts it."""

    def __init__(self, service: Service, request: Request, generation: Generation, body: EmbeddingRequest) -> None:
        self._service, self._request, self._generation, self._body = service, request, generation, body

    async def send(self) -> None:
        await abort_when_gone(self._service, self._request, self._generation, self._answer())

    async def _answer(self) -> None:
        await self._generation.ended.wait()
        errors = [delta.error for delta in await self._generation.next() if delta.error is not None]
        if self._generation.error is not None or errors:
            raise failure(self._generation.error or errors[0])
        data = [
            {"object": "embedding", "index": choice.index, "embedding": self._worded(choice.embedding)}
            for choice in self._generation.choices
        ]
        usage = self._generation.usage
        await self._request.respond_json(
            {
                "object": "list",
                "data": data,
                "model": self._body.model,
                "usage": {
                    "prompt_tokens": usage.prompt_tokens,
                    "total_tokens": usage.prompt_tokens,
                    "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
                    "metergate": {"compute_us": usage.compute_us},
                },
            }
        )

    def _worded(self, vector: list[float]) -> Any:
        """Of length 1; as numbers, or as little-endian float32 in base64."""
        length = math.sqrt(math.fsum(value * value for value in vector)) or 1.0
        unit = [value / length for value in vector]
        if self._body.encoding_format == "float":
            return unit
        return base64.b64encode(np.asarray(unit, dtype="<f4").tobytes()).decode()
