"""Sound, pictures, rankings: what goes in goes up as it came, what comes back is the caller's, and its price is what it used."""

from __future__ import annotations

from typing import Any, cast

import openai
import pytest

from gateway.api.media import MEDIA, JsonMedia
from gateway.errors import ApiError
from gateway.routing.provider import Provider
from gateway.settings import ProviderSettings
from tests.gateway.api.conftest import Gateway, Upstream
from tests.gateway.upstream.routes import route_to

SOUND = bytes(range(256)) * 8


def client(gateway: Gateway) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=f"http://127.0.0.1:{gateway.port}/v1", api_key=gateway.key, max_retries=0)


async def test_the_official_client_speaks_draws_and_listens(gateway: Gateway, up: Upstream) -> None:
    async with client(gateway) as by_openai:
        raw = await by_openai.audio.speech.with_raw_response.create(model="media", voice="alloy", input="Foxes.")
        assert (raw.content, raw.headers["content-type"]) == (b"ID3\x00\xff sound", "audio/mpeg")
        heard = await by_openai.audio.transcriptions.create(model="media", file=("a.mp3", SOUND), language="en")
        assert heard.text == "foxes"
        drawn = await by_openai.images.generate(model="media", prompt="foxes", n=2)
        assert drawn.data is not None and [each.b64_json for each in drawn.data] == ["AAAA", "AAAA"]
        judged = await by_openai.moderations.create(model="media", input="foxes")
        assert judged.results[0].flagged is False
    speech, sound, picture, _ = await up.book()
    assert speech["body"] == {"model": "up-media", "voice": "alloy", "input": "Foxes."}
    assert picture["body"]["model"] == "up-media"
    form: str = sound["body"]
    assert SOUND.decode("latin-1") in form and "\r\n\r\nup-media\r\n" in form and "\r\n\r\nen\r\n" in form
    assert sound["headers"]["content-type"].startswith("multipart/form-data; boundary=")
    assert "sk-mg-" not in str(await up.book())


@pytest.mark.parametrize(
    ("path", "script", "tokens", "estimated"),
    [
        ("/v1/audio/transcriptions", "", {"input": 4, "audio_input": 10, "output": 5}, False),
        ("/v1/audio/transcriptions", "seconds=1", {"audio_input": 3}, False),
        ("/v1/images/generations", "", {"input": 9, "image_output": 500}, False),
        ("/v1/images/generations", "bare=1", {"image_output": 2}, False),
        ("/v1/rerank", "", {"input": 33}, False),
        ("/v1/audio/transcriptions", "plain=1", None, True),
        ("/v1/audio/speech", "", None, True),
        ("/v1/moderations", "", None, True),
    ],
)
async def test_usage_is_read_by_class_or_estimated(
    gateway: Gateway, path: str, script: str, tokens: dict[str, int] | None, estimated: bool
) -> None:
    text = f"[[{script}]] foxes"
    fields: dict[str, Any] = {"model": "media", "prompt": text, "input": text, "documents": [text]}
    if path.endswith("transcriptions"):
        answer = await gateway.client.post(path, data={"model": "media", "prompt": text}, files={"file": SOUND})
    else:
        answer = await gateway.client.post(path, json=fields)
    assert answer.status_code == 200, answer.text
    row = await gateway.row(answer)
    used = {name: count for name, count in row["tokens"].items() if count and not name.startswith("total")}
    assert used == tokens if tokens is not None else used["input"] > 0
    assert row["estimated"] == estimated


async def test_what_cannot_be_done_is_a_400_that_says_so(gateway: Gateway, up: Upstream) -> None:
    async with client(gateway) as by_openai:
        with pytest.raises(openai.BadRequestError, match="answers whole"):
            await by_openai.audio.transcriptions.create(model="media", file=("a.mp3", SOUND), stream=True)
        with pytest.raises(openai.BadRequestError, match="'n' must be between 1 and 10"):
            await by_openai.images.generate(model="media", prompt="foxes", n=11)
    for data in ({}, {"model": ["media", "other"]}, {"model": "media", "priority": "1"}):
        answer = await gateway.client.post("/v1/audio/transcriptions", data=data, files={"file": SOUND})
        assert answer.status_code == 400, answer.text
    assert (await gateway.client.post("/v1/audio/transcriptions", data={"model": "media"})).status_code == 400
    assert await up.book() == []


@pytest.mark.parametrize("kind", ["anthropic", "gemini"])
async def test_a_provider_of_another_dialect_has_none_of_these(kind: str) -> None:
    settings = ProviderSettings(kind=cast(Any, kind), base_url="http://127.0.0.1:9")
    route = route_to(Provider("p", settings), "m")
    body = b'{"model":"m","input":"a","prompt":"a","documents":["a"]}'
    for surface in (each for each in MEDIA if isinstance(each, JsonMedia)):
        call = surface.read(body)
        assert call.over is not None
        with pytest.raises(ApiError) as refused:
            call.over(route.provider.adapter).prepare(call, route, request_id="r", output_cap=None, team_id="t")
        assert (refused.value.status, refused.value.code) == (400, "unsupported_endpoint")


async def test_rule_27_a_refusal_of_such_an_endpoint_quotes_no_key(gateway: Gateway) -> None:
    script = "[[status=400;quote=sk-provider-AbCdEf0123456789xyzW]]"
    answer = await gateway.client.post("/v1/rerank", json={"model": "media", "query": script, "documents": ["a"]})
    assert answer.status_code == 400 and "AbCdEf" not in answer.text
