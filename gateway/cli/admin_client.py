"""The admin API as the verbs call it: one client that knows where the gateway is and how an error reads."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx

from gateway.cli.errors import CliError

Json = dict[str, Any]
"""One object of the admin API, as it came: the verbs print it and compute nothing from it."""


def admin_key() -> str:
    """METERGATE_ADMIN_KEY, or the file `admin-key` under METERGATE_HOME. Raises `CliError`."""
    key = os.environ.get("METERGATE_ADMIN_KEY")
    if key:
        return key.strip()
    file = Path(os.environ.get("METERGATE_HOME", "var")) / "admin-key"
    try:
        return file.read_text(encoding="ascii").strip()
    except OSError as error:
        raise CliError(
            f"no admin key: set METERGATE_ADMIN_KEY, or METERGATE_HOME to the gateway's folder ({file}: {error.strerror})"
        ) from error


class AdminClient:
    """Calls under `/admin/v1` of the gateway at `url`. Every failure is a `CliError` with the gateway's own words."""

    def __init__(self, url: str, timeout_s: float = 30) -> None:
        self._url = url.rstrip("/")
        self._client = httpx.Client(
            base_url=f"{self._url}/admin/v1",
            headers={"authorization": f"Bearer {admin_key()}"},
            timeout=timeout_s,
            trust_env=False,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._client.close()

    def get(self, path: str, params: Mapping[str, object] | None = None) -> Json:
        return self._call("GET", path, params=_given(params or {}))

    def text(self, path: str, params: Mapping[str, object] | None = None) -> str:
        """An answer that is no JSON, as it came."""
        return self._answer("GET", path, params=_given(params or {})).text

    def pieces(self, path: str, params: Mapping[str, object] | None = None) -> Iterator[str]:
        """The same, of any length, as it comes."""
        with self._connected(), self._client.stream("GET", path, params=_given(params or {})) as answer:
            if not answer.is_success:
                answer.read()
                raise CliError(_message(answer))
            yield from answer.iter_text()

    def post(self, path: str, body: Mapping[str, object]) -> Json:
        return self._call("POST", path, json=dict(body))

    def patch(self, path: str, body: Mapping[str, object]) -> Json:
        return self._call("PATCH", path, json=dict(body))

    def pages(self, path: str, params: Mapping[str, object] | None = None, limit: int | None = None) -> Iterator[Json]:
        """The rows of a list, following its cursor, at most `limit` of them."""
        asked = dict(params or {})
        count = 0
        while True:
            page = self.get(path, asked)
            for row in page["data"]:
                if limit is not None and count >= limit:
                    return
                count += 1
                yield row
            cursor = page.get("next_cursor")
            if cursor is None:
                return
            asked["cursor"] = cursor

    def _call(self, method: str, path: str, **options: Any) -> Json:
        answer = self._answer(method, path, **options)
        body: Json = answer.json() if answer.content else {}
        return body

    def _answer(self, method: str, path: str, **options: Any) -> httpx.Response:
        with self._connected():
            answer = self._client.request(method, path, **options)
        if answer.is_success:
            return answer
        raise CliError(_message(answer))

    @contextmanager
    def _connected(self) -> Iterator[None]:
        try:
            yield
        except httpx.HTTPError as error:
            raise CliError(
                f"no gateway answers at {self._url} ({str(error) or type(error).__name__}); "
                "start one with `metergate serve`, or say where it is: --url or METERGATE_URL"
            ) from error


def _given(params: Mapping[str, object]) -> dict[str, Any]:
    return {name: value for name, value in params.items() if value is not None and value != ()}


def _message(answer: httpx.Response) -> str:
    try:
        error = answer.json()["error"]
        message, field = str(error["message"]), error.get("param")
    except (ValueError, KeyError, TypeError):
        message, field = answer.reason_phrase, None
    where = f"{field}: " if field and not message.startswith(str(field)) else ""
    return f"{where}{message} (HTTP {answer.status_code})"
