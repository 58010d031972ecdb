"""What is known under a request's id for a while: bounded in time and in number."""

from __future__ import annotations

import time
from collections import OrderedDict
from typing import Generic, TypeVar

T = TypeVar("T")


class Remembered(Generic[T]):
    """Each value for `kept_s` after it was put in; beyond `most` of them the oldest go first."""

    def __init__(self, kept_s: float, most: int) -> None:
        self._kept_s, self._most = kept_s, most
        self._values: OrderedDict[str, tuple[float, T]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._values)

    def put(self, request_id: str, value: T) -> None:
        """In place of what stood there."""
        self._values[request_id] = time.monotonic() + self._kept_s, value
        self._values.move_to_end(request_id)
        self._forget()

    def get(self, request_id: str) -> T | None:
        self._forget()
        found = self._values.get(request_id)
        return None if found is None else found[1]

    def take(self, request_id: str) -> T | None:
        """As `get`, and it is known no longer."""
        found = self.get(request_id)
        self._values.pop(request_id, None)
        return found

    def _forget(self) -> None:
        now_s = time.monotonic()
        while self._values:
            expires_s, _ = next(iter(self._values.values()))
            if expires_s > now_s and len(self._values) <= self._most:
                break
            self._values.popitem(last=False)
