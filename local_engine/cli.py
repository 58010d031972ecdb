"""`python -m local_engine serve|plan|quantize MODEL …`, with vLLM's flag names. `metergate engine …` calls the same."""

from __future__ import annotations

import argparse
import logging
import os
import sys
from collections.abc import Sequence

import msgspec

from .config import (
    DEVICES,
    DTYPES,
    KERNELS,
    KV_CACHE_DTYPES,
    POLICIES,
    REASONING_PARSERS,
    TOOL_CALL_PARSERS,
    EngineConfig,
    ServerConfig,
    SpeculativeConfig,
)
from .errors import ConfigError, EngineError

API_KEY_VARIABLE = "METERGATE_ENGINE_API_KEY"
USAGE = """usage: python -m local_engine serve|plan|quantize MODEL [flags]

serve     answer OpenAI requests with MODEL
plan      say what memory MODEL takes, and what fits which GPU
quantize  write MODEL in 4 or 8 bits"""


def main(argv: Sequence[str] | None = None) -> int:
    arguments = list(sys.argv[1:] if argv is None else argv)
    if not arguments or arguments[0] in ("-h", "--help"):
        print(USAGE)
        return 0 if arguments else 2
    if arguments[0] == "plan":
        from .planner.cli import plan

        return plan(arguments[1:])
    if arguments[0] == "quantize":
        from .quantiser.cli import quantize

        return quantize(arguments[1:])
    if arguments[0] != "serve":
        print(f"local_engine: unknown command {arguments[0]!r}; there are: serve, plan, quantize", file=sys.stderr)
        return 2
    return serve(arguments[1:])


def serve(argv: Sequence[str]) -> int:
    """Serves until stopped; returns the exit status. A wrong flag, model or address is one line on stderr and status 1."""
    given = make_parser().parse_args(argv)
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="local_engine: %(levelname)s %(message)s")
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
    try:
        given.lora_modules = tuple(given.lora_modules)
        engine = EngineConfig(**{name: getattr(given, name) for name in _ENGINE_FLAGS})
        settings = ServerConfig(
            **{name: getattr(given, name) for name in _SERVER_FLAGS},
            served_model_names=tuple(given.served_model_names or ()),
            api_key=given.api_key or os.environ.get(API_KEY_VARIABLE),
        )
        from .server.run import serve as run
        from .weights.model_store import resolve_model

        return run(engine, settings, resolve_model(engine.model))
    except EngineError as error:
        print(f"local_engine: error: {error}", file=sys.stderr, flush=True)
        return 1
    except KeyboardInterrupt:
        return 130


_ENGINE_FLAGS = tuple(name for name in EngineConfig.__dataclass_fields__ if name != "data_parallel_rank")
_SERVER_FLAGS = tuple(
    name for name in ServerConfig.__dataclass_fields__ if name not in ("served_model_names", "api_key")
)


def make_parser() -> argparse.ArgumentParser:
    engine = {name: field.default for name, field in EngineConfig.__dataclass_fields__.items()}
    server = {name: field.default for name, field in ServerConfig.__dataclass_fields__.items()}
    parser = argparse.ArgumentParser(
        prog="metergate engine serve",
        description="Serve one model over OpenAI's API.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("model", help="a folder with safetensors, a .gguf file, or a known name")
    _server_flags(parser.add_argument_group("server"), server)
    _model_flags(parser.add_argument_group("model and memory"), engine)
    _scheduling_flags(parser.add_argument_group("scheduling"), engine)
    return parser


def _server_flags(group: argparse._ArgumentGroup, default: dict[str, object]) -> None:
    add = group.add_argument
    add("--host", default=default["host"], help="address to listen on")
    add("--port", type=int, default=default["port"], help="0: any free port")
    add("--port-file", help="where to write the port once listening")
    add("--parent-fd", type=int, help="end when this pipe closes")
    add("--served-model-name", dest="served_model_names", nargs="+", help="names callers may use")
    add("--api-key", help=f"bearer token that callers must send (better: {API_KEY_VARIABLE})")
    add("--chat-template", help="a file, or the template itself")
    add("--generation-config", choices=("auto", "vllm"), default=default["generation_config"])
    add("--convert", choices=("auto", "embed"), default=default["convert"], help="embed: vectors of any model")
    add("--enable-auto-tool-choice", action="store_true", help="models may call tools as they see fit")
    add("--tool-call-parser", help=f"how the model writes calls: {', '.join(TOOL_CALL_PARSERS)}")
    add("--reasoning-parser", help=f"how the model marks reasoning: {', '.join(REASONING_PARSERS)}")
    add("--max-waiting", type=int, default=default["max_waiting"], help="sequences that may wait; above: 503")
    add("--max-request-bytes", type=int, default=default["max_request_bytes"])
    add(
        "--core-timeout-seconds",
        dest="core_timeout_s",
        type=int,
        default=default["core_timeout_s"],
        help="end a core that has not answered for so long",
    )
    add("--drain-seconds", dest="drain_s", type=int, default=default["drain_s"], help="grace after SIGTERM")


def _model_flags(group: argparse._ArgumentGroup, default: dict[str, object]) -> None:
    add = group.add_argument
    add("--device", default=default["device"], help=f"one of {', '.join(DEVICES)}, or cuda:N")
    add("--dtype", choices=DTYPES, default=default["dtype"])
    add("--quantization", "-q", default=default["quantization"])
    add("--kv-cache-dtype", choices=KV_CACHE_DTYPES, default=default["kv_cache_dtype"])
    add("--max-model-len", type=tokens_flag, help="tokens of prompt plus output (8192, 32k)")
    add("--block-size", type=int, default=default["block_size"])
    add("--gpu-memory-utilization", type=float, default=default["gpu_memory_utilization"])
    add("--kv-cache-memory-bytes", type=bytes_flag, help="e.g. 2G; default on the CPU: min(4G, 40 %% of what is free)")
    add("--num-gpu-blocks-override", dest="num_blocks_override", type=int, help="exactly so many KV blocks")
    add("--tensor-parallel-size", "-tp", type=int, default=default["tensor_parallel_size"])
    add("--data-parallel-size", "-dp", type=int, default=default["data_parallel_size"], help="so many whole models")
    add(
        "--distributed-timeout-seconds",
        dest="distributed_timeout_s",
        type=int,
        default=default["distributed_timeout_s"],
        help="end an engine whose ranks have waited for one of them for so long",
    )
    add("--cpu-threads", type=int, help="of each process; default: the cores that all of them may use, shared out")
    add("--enforce-eager", action="store_true")
    add(
        "--kernels",
        choices=KERNELS,
        default=default["kernels"],
        help="auto takes the fastest that agrees with plain torch",
    )
    add("--speculative-config", type=speculative_flag, help='such as {"method": "ngram", "num_speculative_tokens": 4}')
    add("--enable-lora", action="store_true", help="serve adapters beside the model")
    add("--lora-modules", type=lora_flag, nargs="+", default=(), help="NAME=FOLDER of each adapter (PEFT's format)")
    add(
        "--allow-runtime-lora-updating",
        action="store_true",
        help="callers may load adapters from this machine's folders",
    )
    add("--max-lora-rank", type=int, default=default["max_lora_rank"])
    add("--max-logprobs", type=int, default=default["max_logprobs"])
    add("--seed", type=int, help="seeds the seeds of requests that name none")


def _scheduling_flags(group: argparse._ArgumentGroup, default: dict[str, object]) -> None:
    add = group.add_argument
    add("--max-num-seqs", type=int, default=default["max_num_seqs"])
    add(
        "--max-num-batched-tokens",
        type=tokens_flag,
        default=default["max_num_batched_tokens"],
        help="budget of one step",
    )
    add("--scheduling-policy", choices=POLICIES, default=default["scheduling_policy"])
    add("--step-target-ms", type=int, default=default["step_target_ms"], help="CPU: wall time a step aims at; 0: off")
    add(
        "--enable-prefix-caching",
        action=argparse.BooleanOptionalAction,
        default=default["enable_prefix_caching"],
    )


def speculative_flag(text: str) -> SpeculativeConfig:
    """JSON, as vLLM takes it."""
    try:
        return msgspec.convert(msgspec.json.decode(text), SpeculativeConfig)
    except ConfigError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    except (msgspec.ValidationError, msgspec.DecodeError) as error:
        raise argparse.ArgumentTypeError(
            f"{text!r} is no such configuration ({error}); an example: "
            '{"method": "ngram", "num_speculative_tokens": 4}'
        ) from error


def lora_flag(text: str) -> tuple[str, str]:
    """`name=folder`."""
    name, separator, folder = text.partition("=")
    if not (separator and name and folder):
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=FOLDER (example: tone=/models/tone-lora)")
    return name, folder


def tokens_flag(text: str) -> int:
    """`8192`, `32k` (thousands) or `32K` (of 1024), as vLLM reads them."""
    return _scaled(text, {"k": 1_000, "m": 1_000_000, "K": 1 << 10, "M": 1 << 20})


def bytes_flag(text: str) -> int:
    """`2G` is 2 GiB, `2g` two thousand million bytes."""
    return _scaled(text, {"k": 1_000, "m": 10**6, "g": 10**9, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30})


def _scaled(text: str, units: dict[str, int]) -> int:
    scale = units.get(text[-1:], 1)
    digits = text[:-1] if text[-1:] in units else text
    try:
        return int(digits) * scale
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no number (examples: 8192, 32k, 2G)") from None
