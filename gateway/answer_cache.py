"""Answers kept to be given again to the very same request: off by default, one key per team unless a model shares on purpose.

What is kept is what the caller got, without its cost. In memory for one process, in Redis or Valkey as soon as there is a
`redis_url`; a store that is away or slow is a miss, never an error.
"""

from __future__ import annotations

import logging
import time
from collections import OrderedDict
from collections.abc import Mapping
from hashlib import sha256
from typing import TYPE_CHECKING, Final, Protocol

import msgspec

from gateway.metrics import ANSWER_CACHE, Metrics
from gateway.settings import Settings

if TYPE_CHECKING:
    from gateway.access.identity import Identity
    from gateway.routing.routes import Model
    from gateway.upstream.base import Answer, Call

logger = logging.getLogger(__name__)

TIMEOUT_S: Final = 0.2
PREFIX: Final = b"{metergate}:answer:"
LABELS: Final = frozenset({"user", "metadata", "safety_identifier", "prompt_cache_key", "stream_options"})
"""They say who asks, not what; whether a stream ends with its usage is a part of the key by itself."""
UNSAMPLED: Final = frozenset({"embeddings", "rerank", "moderations"})
"""The endpoints whose answer is the same each time."""
_ZERO: Final = frozenset({b"0", b"0.0"})


class KeptAnswer(msgspec.Struct, frozen=True, array_like=True):
    """`ending` is what follows the content of a stream, cut where its cost stood: a hit says there that it costs nothing."""

    content: bytes
    ending: tuple[bytes, ...] = ()
    content_type: str | None = None  # where it is no JSON

    def last(self, currency: str) -> bytes:
        return msgspec.json.encode(f"0 {currency}").join(self.ending)


_decode = msgspec.msgpack.Decoder(KeptAnswer).decode
_encode = msgspec.msgpack.Encoder().encode


class AnswerStore(Protocol):
    async def get(self, key: bytes) -> bytes | None: ...
    async def put(self, key: bytes, value: bytes, ttl_s: float) -> None: ...
    async def aclose(self) -> None: ...


class MemoryAnswers:
    """The last used ones, up to `most_bytes` in all."""

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._bytes = 0
        self._kept: OrderedDict[bytes, tuple[float, bytes]] = OrderedDict()

    async def get(self, key: bytes) -> bytes | None:
        found = self._kept.get(key)
        if found is None:
            return None
        if found[0] <= time.monotonic():
            self._drop(key)
            return None
        self._kept.move_to_end(key)
        return found[1]

    async def put(self, key: bytes, value: bytes, ttl_s: float) -> None:
        if key in self._kept:
            self._drop(key)
        self._kept[key] = time.monotonic() + ttl_s, value
        self._bytes += len(value)
        while self._bytes > self._most_bytes:
            self._drop(next(iter(self._kept)))

    def _drop(self, key: bytes) -> None:
        self._bytes -= len(self._kept.pop(key)[1])

    async def aclose(self) -> None:
        self._kept.clear()


class SharedAnswers:
    """One for all processes. The server forgets them by itself, and may evict them earlier."""

    def __init__(self, url: str) -> None:
        from gateway.admission.pipeline import Pipeline

        self._pipeline = Pipeline(url, TIMEOUT_S)

    async def get(self, key: bytes) -> bytes | None:
        from gateway.admission.resp import command

        found = await self._pipeline.execute(command("GET", PREFIX + key))
        return found if isinstance(found, bytes) else None

    async def put(self, key: bytes, value: bytes, ttl_s: float) -> None:
        from gateway.admission.resp import command

        await self._pipeline.execute(command("SET", PREFIX + key, value, "PX", max(1, int(ttl_s * 1000))))

    async def aclose(self) -> None:
        await self._pipeline.aclose()


class Keeping:
    """One answer on its way to its caller, collected to be kept. Too large a one is let go."""

    __slots__ = ("_content", "_content_type", "_ending", "_most_bytes", "key")

    def __init__(self, key: bytes, most_bytes: int) -> None:
        self.key = key
        self._most_bytes = most_bytes
        self._content: bytearray | None = bytearray()
        self._content_type: str | None = None
        self._ending: tuple[bytes, ...] = ()

    def anew(self) -> Keeping:
        """For another attempt at the same request."""
        return Keeping(self.key, self._most_bytes)

    def hear(self, piece: bytes) -> None:
        if self._content is not None:
            self._content += piece
            if len(self._content) > self._most_bytes:
                self._content = None

    def hear_whole(self, answer: Answer) -> None:
        self._content_type = answer.content_type
        self.hear(answer.body)

    def end(self, ending: bytes, cost: str | None) -> None:
        self._ending = (ending,) if cost is None else tuple(ending.split(msgspec.json.encode(cost)))

    def answer(self) -> KeptAnswer | None:
        if self._content is None:
            return None
        return KeptAnswer(bytes(self._content), self._ending, self._content_type)


class AnswerCache:
    """What `Exchange` asks before a plan, and tells after an answer."""

    def __init__(self, settings: Settings, metrics: Metrics) -> None:
        self.settings = settings.cache
        self._asked = {result: metrics.answer_cache.labels(result) for result in ANSWER_CACHE}
        url = settings.redis_url
        self._store: AnswerStore = MemoryAnswers(self.settings.max_bytes) if url is None else SharedAnswers(url)

    def keeping(self, model: Model, call: Call, identity: Identity, headers: Mapping[bytes, bytes]) -> Keeping | None:
        """What collects this request's answer, under its key; None where none may be given again.

        A sampled answer is one of many: it is kept only where the caller asks for that by `x-metergate-cache`. What a form
        asks stands in its file as well, of which `fields` know nothing: its answer never is.
        """
        if model.settings.cache is None or call.surface == "count_tokens" or b"x-metergate-no-cache" in headers:
            return None
        if call.form is not None or (_is_sampled(call) and b"x-metergate-cache" not in headers):
            return None
        return Keeping(self._key(model, call, identity), self.settings.max_answer_bytes)

    async def find(self, key: bytes) -> KeptAnswer | None:
        try:
            found = await self._store.get(key)
            kept = None if found is None else _decode(found)
        except Exception as error:
            self._asked["failed"].inc()
            logger.info("the answer cache is passed over: %s", error)
            return None
        self._asked["miss" if kept is None else "hit"].inc()
        return kept

    async def keep(self, keeping: Keeping) -> None:
        answer = keeping.answer()
        if answer is None:
            return
        try:
            await self._store.put(keeping.key, _encode(answer), self.settings.ttl_s)
        except Exception as error:
            logger.info("an answer is not kept: %s", error)

    async def aclose(self) -> None:
        await self._store.aclose()

    def _key(self, model: Model, call: Call, identity: Identity) -> bytes:
        """What can change the answer: whose it is, the endpoint, the model and its routes, every field that is no label."""
        digest = sha256()
        whose = "" if model.settings.cache == "shared" else identity.team_id
        routes = [(route.provider_name, route.model) for route in model.routes]
        usage = call.streamed and call.wants_usage
        digest.update(_encode((2, whose, call.surface, call.dialect, model.name, routes, usage)))
        for name in sorted(call.fields):
            if name not in LABELS:
                digest.update(_encode((name, bytes(call.fields[name]))))
        return digest.digest()


def _is_sampled(call: Call) -> bool:
    """Only what writes has a temperature: speech and pictures always differ."""
    if call.surface in UNSAMPLED:
        return False
    return not call.speaks or bytes(call.fields.get("temperature", b"")) not in _ZERO
