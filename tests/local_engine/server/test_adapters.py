"""Adapters by name and vectors over HTTP: the real command on a tiny random model with the tokenizer of bytes."""

from __future__ import annotations

import asyncio
import base64
import math
import struct
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import httpx
import pytest

from ..models.test_adapters import LLAMA_TARGETS, save_adapter
from ..models.test_families import save_tiny
from ..tiny import VOCAB, write_model_folder
from .running import RunningEngine

MODEL = "tiny-qwen"


class AdaptedEngine(RunningEngine):
    deadline_s = 240.0
    """The first start on a machine compiles the kernels."""

    def __init__(self, folder: Path, scratch: Path) -> None:
        super().__init__(folder, scratch)
        self.folder = folder

    def command(self) -> list[str]:
        flags = ["--port", "0", "--port-file", str(self.port_file), "--parent-fd", str(self._read_fd)]
        flags += ["--num-gpu-blocks-override", "64", "--dtype", "float32", "--convert", "embed", "--enable-lora"]
        flags += ["--allow-runtime-lora-updating"]
        flags += ["--lora-modules", *(f"{name}={self.folder.parent / name}" for name in ("calm", "wild"))]
        return [sys.executable, "-m", "local_engine", "serve", str(self.folder), *flags]


@pytest.fixture(scope="module")
def adapted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AdaptedEngine]:
    scratch = tmp_path_factory.mktemp("adapted")
    model = save_tiny(scratch / MODEL, "Qwen2", {"vocab_size": VOCAB})
    config = (scratch / MODEL / "config.json").read_bytes()
    write_model_folder(scratch / MODEL)
    (scratch / MODEL / "config.json").write_bytes(config)
    for seed, name in enumerate(("calm", "wild")):
        save_adapter(scratch / name, model, LLAMA_TARGETS, seed)
    with AdaptedEngine(scratch / MODEL, scratch) as running:
        yield running


@pytest.fixture
async def client(adapted: RunningEngine) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=adapted.url, trust_env=False, timeout=60) as client:
        yield client


async def test_an_adapter_is_a_model_of_its_own_name(client: httpx.AsyncClient) -> None:
    cards = (await client.get("/v1/models")).json()["data"]
    assert [(card["id"], card["parent"]) for card in cards] == [(MODEL, None), ("calm", MODEL), ("wild", MODEL)]
    texts = set()
    for name in (MODEL, "calm", "wild"):
        body = {"model": name, "prompt": "hello", "max_tokens": 12, "temperature": 0, "ignore_eos": True}
        answer = (await client.post("/v1/completions", json=body)).json()
        assert answer["model"] == name
        texts.add(answer["choices"][0]["text"])
    assert len(texts) == 3
    unknown = await client.post("/v1/completions", json={"model": "loud", "prompt": "x"})
    assert unknown.status_code == 404
    assert unknown.json()["error"]["message"].endswith(f"this engine serves {MODEL}, calm, wild.")


async def test_adapters_come_and_go_while_the_engine_runs(client: httpx.AsyncClient, adapted: AdaptedEngine) -> None:
    async def post(path: str, **body: object) -> tuple[int, str]:
        answer = await client.post(path, json=body)
        return answer.status_code, answer.text

    calm, asked = str(adapted.folder.parent / "calm"), {"prompt": "hello", "max_tokens": 8, "temperature": 0}
    assert (await post("/v1/load_lora_adapter", lora_name="late", lora_path=calm))[0] == 200
    texts = [
        (await client.post("/v1/completions", json={"model": name, **asked})).json()["choices"][0]["text"]
        for name in ("late", "calm")
    ]
    assert texts[0] == texts[1]
    assert (await post("/v1/load_lora_adapter", lora_name="late", lora_path=calm))[0] == 400
    status, text = await post("/v1/load_lora_adapter", lora_name="none", lora_path="/nowhere")
    assert status == 400 and "has no adapter_config.json" in text
    stream = {"model": "late", "prompt": "x", "max_tokens": 200, "ignore_eos": True, "stream": True}
    async with client.stream("POST", "/v1/completions", json=stream) as running:
        await anext(running.aiter_lines())
        status, text = await post("/v1/unload_lora_adapter", lora_name="late")
        assert (status == 400 and "serves 1 sequences" in text) or status == 200, "it may have ended already"
    assert status == 200 or await unloaded(client, "late")
    assert (await post("/v1/unload_lora_adapter", lora_name="late"))[0] == 404
    assert (await post("/v1/completions", model="late", prompt="x"))[0] == 404


async def unloaded(client: httpx.AsyncClient, name: str) -> bool:
    """Its last sequence was aborted a moment ago."""
    for _ in range(600):
        if (await client.post("/v1/unload_lora_adapter", json={"lora_name": name})).status_code == 200:
            return True
        await asyncio.sleep(0.05)
    return False


async def test_vectors_have_length_one_and_come_in_both_encodings(client: httpx.AsyncClient) -> None:
    body = {"model": MODEL, "input": ["hello", "hello", "other", [104, 105]]}
    answer = (await client.post("/v1/embeddings", json=body)).json()
    vectors = [item["embedding"] for item in answer["data"]]
    assert [item["index"] for item in answer["data"]] == [0, 1, 2, 3]
    assert answer["usage"]["prompt_tokens"] == answer["usage"]["total_tokens"] == 17
    assert all(math.isclose(math.hypot(*vector), 1.0, rel_tol=1e-6) for vector in vectors)
    assert vectors[0] == pytest.approx(vectors[1], abs=1e-5) and vectors[0] != pytest.approx(vectors[2], abs=1e-2)
    coded = (await client.post("/v1/embeddings", json={**body, "encoding_format": "base64"})).json()["data"][0]
    data = base64.b64decode(coded["embedding"])
    assert list(struct.unpack(f"<{len(data) // 4}f", data)) == pytest.approx(vectors[0], abs=1e-6)
    adapter = (await client.post("/v1/embeddings", json={**body, "model": "wild"})).json()["data"][0]["embedding"]
    assert adapter != pytest.approx(vectors[0], abs=1e-2)


@pytest.mark.parametrize(
    ("extra", "param"), [({"input": ""}, "input"), ({"input": [[999]]}, "input"), ({"dimensions": 8}, "dimensions"),
                         ({"input": "x" * 256}, "input"), ({"encoding_format": "hex"}, "encoding_format")]
)  # fmt: skip
async def test_inputs_that_have_no_vector_are_refused(
    client: httpx.AsyncClient, extra: dict[str, object], param: str
) -> None:
    answer = await client.post("/v1/embeddings", json={"model": MODEL, "input": "x", **extra})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == param
