"""The supervisor with real child processes: a small HTTP server that speaks the engine's start-up protocol."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import httpx

from gateway.serve.supervisor import EngineSupervisor, engine_command

CHILD = """
import argparse, http.server, os, sys, threading

parser = argparse.ArgumentParser()
parser.add_argument("--host"); parser.add_argument("--port", type=int)
parser.add_argument("--port-file"); parser.add_argument("--parent-fd", type=int)
options = parser.parse_args()

class Health(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.end_headers(); self.wfile.write(b"ok")
    def log_message(self, *arguments): pass

def follow_parent():
    os.read(options.parent_fd, 1)
    os._exit(0)

threading.Thread(target=follow_parent, daemon=True).start()
sys.stderr.write("loading 10%\\rloading 100%\\n"); sys.stderr.flush()
server = http.server.ThreadingHTTPServer((options.host, options.port), Health)
with open(options.port_file + ".new", "w") as file: file.write(str(server.server_port))
os.replace(options.port_file + ".new", options.port_file)
server.serve_forever()
"""


async def until(condition: Callable[[], bool], deadline_s: int = 20) -> None:
    end = time.monotonic() + deadline_s
    while not condition():
        assert time.monotonic() < end, "the condition did not come true in time"
        await asyncio.sleep(0.01)


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def supervised(
    tmp_path: Path, command: list[str] | None = None
) -> tuple[EngineSupervisor, list[str | None], list[str]]:
    announced: list[str | None] = []
    lines: list[str] = []
    command = command or [sys.executable, "-c", CHILD]
    echo = lines.append
    supervisor = EngineSupervisor(
        "local", command, tmp_path, announced.append, echo, restarted=lambda: echo("started again")
    )
    return supervisor, announced, lines


async def test_an_engine_is_announced_when_healthy_and_its_output_is_prefixed(tmp_path: Path) -> None:
    supervisor, announced, lines = supervised(tmp_path)
    supervisor.start()
    await until(lambda: supervisor.base_url is not None)
    assert supervisor.base_url is not None
    async with httpx.AsyncClient() as client:
        answer = await client.get(supervisor.base_url.removesuffix("/v1") + "/health")
    assert answer.text == "ok"
    await until(lambda: len(lines) == 2)
    assert lines == ["[engine local] loading 10%", "[engine local] loading 100%"]
    await supervisor.stop()
    assert announced[-1] is None
    assert len(announced) == 2


async def test_a_killed_engine_is_started_again_on_a_new_address(tmp_path: Path) -> None:
    supervisor, announced, lines = supervised(tmp_path)
    supervisor.start()
    await until(lambda: supervisor.base_url is not None)
    first = supervisor.pid
    assert first is not None
    os.kill(first, signal.SIGKILL)
    await until(lambda: supervisor.pid not in (None, first) and supervisor.base_url is not None)
    assert supervisor.restarts == 1 == lines.count("started again")
    assert [address is None for address in announced] == [False, True, False]
    assert any("ended with SIGKILL; starting again in 0.5 s" in line for line in lines)
    await supervisor.stop()


async def test_a_command_that_cannot_start_is_retried_with_a_growing_wait(tmp_path: Path) -> None:
    supervisor, announced, lines = supervised(tmp_path, [str(tmp_path / "no-such-program")])
    supervisor.start()
    await until(lambda: supervisor.restarts == 2)
    await supervisor.stop()
    assert announced == []
    waits = [line.rpartition("again in ")[2] for line in lines if "starting again" in line]
    assert waits[:2] == ["0.5 s", "1 s"]


async def test_stop_ends_the_child_and_its_whole_group(tmp_path: Path) -> None:
    grandchild = tmp_path / "grandchild"
    script = (
        "import subprocess, sys, time\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        f"open({str(grandchild)!r} + '.new', 'w').write(str(child.pid))\n"
        f"import os; os.replace({str(grandchild)!r} + '.new', {str(grandchild)!r})\n"
        "time.sleep(600)\n"
    )
    supervisor, _, _ = supervised(tmp_path, [sys.executable, "-c", script])
    supervisor.start()
    await until(grandchild.exists)
    pids = [supervisor.pid, int(grandchild.read_text())]
    await supervisor.stop()
    for pid in pids:
        assert pid is not None
        await until(lambda pid=pid: not alive(pid))  # type: ignore[misc]


async def test_a_supervisor_killed_with_sigkill_leaves_no_engine_behind(tmp_path: Path) -> None:
    script = (
        "import asyncio, sys\n"
        "from pathlib import Path\n"
        "from gateway.serve.supervisor import EngineSupervisor\n"
        "async def main():\n"
        f"    supervisor = EngineSupervisor('local', [sys.executable, '-c', {CHILD!r}], Path({str(tmp_path)!r}),\n"
        "        lambda url: url and print(supervisor.pid, flush=True), lambda line: None)\n"
        "    supervisor.start()\n"
        "    await asyncio.Event().wait()\n"
        "asyncio.run(main())\n"
    )
    root = Path(__file__).resolve().parents[3]
    parent = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, cwd=root)
    assert parent.stdout is not None
    engine = int(await asyncio.to_thread(parent.stdout.readline))
    assert alive(engine)
    parent.kill()
    await asyncio.to_thread(parent.wait)
    parent.stdout.close()
    await until(lambda: not alive(engine))


def test_the_bundled_engine_runs_under_the_same_python() -> None:
    assert engine_command("smollm2-135m-instruct", ["--max-num-seqs", "8"]) == [
        sys.executable,
        "-m",
        "local_engine",
        "serve",
        "smollm2-135m-instruct",
        "--max-num-seqs",
        "8",
    ]
