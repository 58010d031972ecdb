"""Callers that leave, cancels, drains, deaths: nothing hangs, nothing is lost, nothing is left behind."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from .running import DEADLINE_S, RunningEngine, is_alive, wait_for

MODEL = "tiny-model"
LONG = {"model": MODEL, "prompt": "x" * 100, "max_tokens": 400, "stream": True}
STEP_S = 0.02


@pytest.fixture
def slow(tiny_folder: Path, tmp_path: Path) -> Iterator[RunningEngine]:
    """400 tokens of the oracle take it eight seconds."""
    with RunningEngine(tiny_folder, tmp_path, parrot=False, step_s=STEP_S) as running:
        yield running


@pytest.fixture(scope="module")
def steady(tiny_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningEngine]:
    """The same, for tests that leave it as they found it."""
    with RunningEngine(tiny_folder, tmp_path_factory.mktemp("steady"), parrot=False, step_s=STEP_S) as running:
        yield running


def http(running: RunningEngine, **options: object) -> httpx.Client:
    return httpx.Client(base_url=running.url, trust_env=False, timeout=DEADLINE_S, **options)  # type: ignore[arg-type]


def free_blocks(running: RunningEngine) -> float:
    return running.metric("metergate_engine_kv_blocks_free")


def test_rule_20_a_caller_that_leaves_a_stream_frees_its_pages(steady: RunningEngine) -> None:
    with http(steady) as client:
        with client.stream("POST", "/v1/completions", json=LONG, headers={"x-request-id": "leaver"}) as answer:
            for _ in zip(answer.iter_lines(), range(8), strict=False):
                pass
        left_s = time.monotonic()
        wait_for(lambda: free_blocks(steady) == 64, "all pages to be free", 1.0 + 2 * STEP_S)
        assert time.monotonic() - left_s < 1.5
        final = client.post("/v1/requests/leaver/cancel").json()
    assert final["status"] == "cancelled"
    assert final["usage"]["prompt_tokens"] == 100
    assert 3 <= final["usage"]["completion_tokens"] < 200
    assert final["usage"]["metergate"]["compute_us"] > 0


def test_rule_20_a_caller_that_leaves_without_streaming_is_noticed_too(steady: RunningEngine) -> None:
    body = {**LONG, "stream": False}
    with http(steady) as client, pytest.raises(httpx.ReadTimeout):
        client.post("/v1/completions", json=body, headers={"x-request-id": "quiet"}, timeout=0.3)
    wait_for(lambda: free_blocks(steady) == 64, "all pages to be free", 1.5)
    with http(steady) as client:
        final = client.post("/v1/requests/quiet/cancel").json()
    assert final["status"] == "cancelled"
    assert final["usage"]["completion_tokens"] > 0


def test_cancel_ends_a_running_stream_with_its_exact_usage(steady: RunningEngine) -> None:
    body = {**LONG, "stream_options": {"include_usage": True}}
    found: dict[str, object] = {}
    with http(steady) as client, http(steady) as other:
        with client.stream("POST", "/v1/completions", json=body, headers={"x-request-id": "long"}) as answer:
            lines = (line for line in answer.iter_lines() if line)
            for _ in range(5):
                next(lines)
            canceller = threading.Thread(target=lambda: found.update(other.post("/v1/requests/long/cancel").json()))
            canceller.start()
            rest = list(lines)
            canceller.join()
        again = other.post("/v1/requests/long/cancel").json()
    assert rest[-1] == "data: [DONE]"
    assert '"finish_reason":"abort"' in rest[-3]
    assert found["status"] == "cancelled"
    usage: dict[str, object] = found["usage"]  # type: ignore[assignment]
    assert f'"completion_tokens":{usage["completion_tokens"]},' in rest[-2]
    assert again == found


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_a_cancel_that_overtakes_its_request_ends_it_without_a_step(steady: RunningEngine, stream: bool) -> None:
    mine = {"x-request-id": f"overtaken-{stream}"}
    body = {**LONG, "stream": stream, "stream_options": {"include_usage": True} if stream else None}
    with http(steady) as client:
        steps = steady.metric("metergate_engine_steps_total")
        early = client.post(f"/v1/requests/{mine['x-request-id']}/cancel")
        text = client.post("/v1/completions", json=body, headers=mine).text
        final = client.post(f"/v1/requests/{mine['x-request-id']}/cancel").json()
        assert steady.metric("metergate_engine_steps_total") == steps
        again = client.post("/v1/completions", json={**LONG, "stream": False, "max_tokens": 3}, headers=mine).json()
    assert (early.status_code, early.json()["error"]["code"]) == (404, "request_not_found")
    assert '"finish_reason":"abort"' in text
    assert '"completion_tokens":0,' in text
    assert final["status"] == "cancelled"
    assert final["usage"]["metergate"]["compute_us"] == 0
    assert again["usage"]["completion_tokens"] == 3  # the cancel was meant for one request


def test_sigterm_drains_running_requests_and_refuses_new_ones(slow: RunningEngine) -> None:
    body = {**LONG, "max_tokens": 60}
    with http(slow) as client, http(slow) as other, client.stream("POST", "/v1/completions", json=body) as answer:
        lines = (line for line in answer.iter_lines() if line)
        next(lines)
        slow.process.send_signal(signal.SIGTERM)
        wait_for(lambda: other.get("/health").json()["status"] == "draining", "draining")
        refused = other.post("/v1/completions", json=body)
        rest = list(lines)
    assert refused.status_code == 503
    assert refused.json()["error"]["code"] == "shutting_down"
    assert refused.headers["retry-after"] == "1"
    assert rest[-1] == "data: [DONE]"
    assert '"finish_reason":"length"' in rest[-2]
    assert slow.process.wait(DEADLINE_S) == 0


def test_a_second_sigterm_aborts_what_still_runs(slow: RunningEngine) -> None:
    with http(slow) as client, client.stream("POST", "/v1/completions", json=LONG) as answer:
        lines = (line for line in answer.iter_lines() if line)
        next(lines)
        slow.process.send_signal(signal.SIGTERM)
        with http(slow) as other:
            wait_for(lambda: other.get("/health").json()["status"] == "draining", "draining")
        slow.process.send_signal(signal.SIGTERM)
        rest = list(lines)
    assert '"finish_reason":"abort"' in rest[-2]
    assert slow.process.wait(DEADLINE_S) == 0


def test_the_death_of_the_core_is_told_in_band_and_ends_the_server(slow: RunningEngine) -> None:
    core = slow.core()
    with http(slow) as client, client.stream("POST", "/v1/completions", json=LONG) as answer:
        lines = (line for line in answer.iter_lines() if line)
        next(lines)
        os.kill(core, signal.SIGKILL)
        rest = list(lines)
    assert rest[-1].startswith('data: {"error":{"message":"The engine core died (signal 9: most likely')
    assert "data: [DONE]" not in rest
    assert slow.process.wait(DEADLINE_S) == 3


def test_a_request_that_kills_the_core_is_answered_with_an_error(tiny_folder: Path, tmp_path: Path) -> None:
    with RunningEngine(tiny_folder, tmp_path) as running, http(running) as client:
        answer = client.post("/v1/completions", json={"model": MODEL, "prompt": [256, 256, 257]})
        assert answer.status_code == 500
        assert answer.json()["error"]["message"] == "The engine core died (exit status 9)."
        assert running.process.wait(DEADLINE_S) == 3


def test_every_process_ends_when_the_parents_pipe_closes(slow: RunningEngine) -> None:
    core = slow.core()
    with http(slow) as client, client.stream("POST", "/v1/completions", json=LONG) as answer:
        next(answer.iter_lines())
        slow.drop_parent()
        wait_for(lambda: slow.process.poll() is not None, "the server to end")
        wait_for(lambda: not is_alive(core), "the core to end")


def test_the_core_ends_when_the_server_is_killed(slow: RunningEngine) -> None:
    core = slow.core()
    slow.process.kill()
    wait_for(lambda: not is_alive(core), "the core to end")


def test_rule_25_a_frozen_core_makes_health_503_and_thawed_it_goes_on(steady: RunningEngine) -> None:
    core = steady.core()
    with http(steady) as client:
        os.kill(core, signal.SIGSTOP)
        try:
            wait_for(lambda: client.get("/health").status_code == 503, "health to notice", 8)
            assert client.get("/health").json()["status"] == "unresponsive"
            refused = client.post("/v1/completions", json={"model": MODEL, "prompt": "ab"})
            assert (refused.status_code, refused.headers["retry-after"]) == (503, "2")
            assert refused.json()["error"]["code"] == "engine_unresponsive"
        finally:
            os.kill(core, signal.SIGCONT)
        wait_for(lambda: client.get("/health").status_code == 200, "health to recover", 8)
        answer = client.post("/v1/completions", json={"model": MODEL, "prompt": "ab", "max_tokens": 2})
        assert answer.json()["usage"]["completion_tokens"] == 2


def test_rule_21_requests_in_a_frozen_core_fail_in_band_at_the_timeout(tiny_folder: Path, tmp_path: Path) -> None:
    with RunningEngine(tiny_folder, tmp_path, parrot=False, step_s=STEP_S, server={"core_timeout_s": 5}) as running:
        core = running.core()
        with http(running) as client, client.stream("POST", "/v1/completions", json=LONG) as answer:
            lines = (line for line in answer.iter_lines() if line)
            next(lines)
            os.kill(core, signal.SIGSTOP)
            began_s = time.monotonic()
            rest = list(lines)
        assert 4 < time.monotonic() - began_s < 10
        assert (
            '"message":"The engine core has not answered for 5 s (--core-timeout-seconds) and was ended."' in rest[-1]
        )
        assert running.process.wait(DEADLINE_S) == 3
        wait_for(lambda: not is_alive(core), "the core to be gone")


def test_a_step_longer_than_the_timeout_is_no_silence(tiny_folder: Path, tmp_path: Path) -> None:
    with (
        RunningEngine(tiny_folder, tmp_path, parrot=False, step_s=6.0, server={"core_timeout_s": 5}) as running,
        http(running) as client,
    ):
        answer = client.post("/v1/completions", json={"model": MODEL, "prompt": "ab", "max_tokens": 1})
        assert answer.status_code == 200, answer.text


def test_a_model_that_cannot_be_loaded_is_one_line_and_status_1(tiny_folder: Path, tmp_path: Path) -> None:
    running = RunningEngine(tiny_folder, tmp_path, engine={"kv_cache_dtype": "fp8"})
    running.start()
    try:
        assert running.process.wait(DEADLINE_S) == 1
        assert "error: model.safetensors is a git-LFS pointer: run `git lfs pull`" in running.log
        assert "Traceback" not in running.log
    finally:
        running.stop()


def test_progress_is_shown_while_weights_load(steady: RunningEngine) -> None:
    assert "local_engine: loading weights 1/2\nlocal_engine: checking them\n" in steady.log
    assert f"local_engine: ready: {MODEL} at {steady.url}/v1\n" in steady.log


def test_a_port_in_use_says_so(tiny_folder: Path, tmp_path: Path) -> None:
    with RunningEngine(tiny_folder, tmp_path) as first:
        port = int(first.port_file.read_text())
        (tmp_path / "second").mkdir()
        second = RunningEngine(tiny_folder, tmp_path / "second")
        second._arguments[1] = second._arguments[1].replace('"port":0', f'"port":{port}')
        second.start()
        try:
            assert second.process.wait(DEADLINE_S) == 1
            assert f"error: cannot listen on 127.0.0.1:{port}: Address already in use" in second.log
        finally:
            second.stop()


def test_a_key_is_asked_for_where_work_is_done(tiny_folder: Path, tmp_path: Path) -> None:
    with RunningEngine(tiny_folder, tmp_path, server={"api_key": "secret-1"}) as running, http(running) as client:
        body = {"model": MODEL, "prompt": "ab"}
        wrong = client.post("/v1/completions", json=body, headers={"authorization": "Bearer secret-2"})
        right = client.post("/v1/completions", json=body, headers={"authorization": "Bearer secret-1"})
        assert wrong.status_code == client.get("/v1/models").status_code == 401
        assert wrong.json()["error"]["code"] == "invalid_api_key"
        assert right.json()["choices"][0]["text"] == "ab"
        assert client.get("/health").status_code == 200
        assert "secret" not in running.log


def test_a_body_over_the_limit_is_refused(tiny_folder: Path, tmp_path: Path) -> None:
    with RunningEngine(tiny_folder, tmp_path, server={"max_request_bytes": 1000}) as running, http(running) as client:
        answer = client.post("/v1/completions", json={"model": MODEL, "prompt": "x" * 1000})
        assert answer.status_code == 413
        assert answer.json()["error"]["message"] == "The request body is larger than 1000 bytes."


async def test_a_full_queue_is_a_503_with_retry_after(tiny_folder: Path, tmp_path: Path) -> None:
    options: dict[str, object] = {"max_waiting": 2}
    with RunningEngine(
        tiny_folder, tmp_path, parrot=False, step_s=STEP_S, engine={"max_num_seqs": 1}, server=options
    ) as running:
        body = {"model": MODEL, "prompt": "ab", "max_tokens": 20}
        async with httpx.AsyncClient(base_url=running.url, trust_env=False, timeout=DEADLINE_S) as client:
            answers = await asyncio.gather(*(client.post("/v1/completions", json=body) for _ in range(12)))
    refused = [answer for answer in answers if answer.status_code == 503]
    served = [answer for answer in answers if answer.status_code == 200]
    assert len(refused) + len(served) == 12
    assert len(served) >= 3
    assert len(refused) >= 1
    assert {answer.headers["retry-after"] for answer in refused} == {"1"}
    assert {answer.json()["error"]["code"] for answer in refused} == {"overloaded"}


async def test_hundreds_of_mixed_callers_leave_the_pool_whole(tiny_folder: Path, tmp_path: Path) -> None:
    """Finishes, stops, aborts, errors and preemptions side by side: all answered, all pages back, no time lost."""
    with RunningEngine(tiny_folder, tmp_path, engine={"num_blocks_override": 32}) as running:
        async with httpx.AsyncClient(
            base_url=running.url, trust_env=False, timeout=DEADLINE_S, limits=httpx.Limits(max_connections=40)
        ) as client:
            statuses = await asyncio.gather(*(_one_of_many(client, number) for number in range(200)))
        wait_for(lambda: free_blocks(running) == 32, "all pages to be free")
        assert sorted(set(statuses)) == [-1, 200, 400, 500]
        assert running.process.poll() is None
        assert "leaked" not in running.log
        assert running.metric("metergate_engine_preemptions_total") > 0


async def _one_of_many(client: httpx.AsyncClient, number: int) -> int:
    kind = number % 5
    body: dict[str, object] = {"model": MODEL, "prompt": f"{number} " * 25, "max_tokens": 200}
    if kind == 1:
        body["stop"] = f"{number} {number} {number}"
    elif kind == 2:
        body["prompt"] = [259, number % 256]
    elif kind == 3:
        body["prompt"] = "x" * 600
    elif kind == 4:
        async with client.stream("POST", "/v1/completions", json={**body, "stream": True}) as answer:
            async for _ in answer.aiter_lines():
                return -1
    answer = await client.post("/v1/completions", json=body)
    if kind == 0:
        assert answer.json()["choices"][0]["text"] == body["prompt"]
    if kind == 1:
        assert answer.json()["choices"][0]["text"] == ""
    return answer.status_code


def test_the_port_file_holds_the_port(steady: RunningEngine) -> None:
    assert os.path.exists(steady.port_file)
    assert httpx.get(f"{steady.url}/health", trust_env=False).json() == {"status": "ok"}
