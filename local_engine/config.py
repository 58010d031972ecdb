"""Every setting of the engine, parsed once at the edge and frozen. Flag names are vLLM's (cli.py)."""

from __future__ import annotations

from dataclasses import dataclass

from .errors import ConfigError

BLOCK_SIZE = 16
"""Tokens per KV block. Fixed: the kernels and the cache's hashes are built on it."""

MAX_FLAG = (1 << 62) - 1
"""More than any machine has of anything; and it fits the frames between the processes."""
MIN_CORE_TIMEOUT_S = 5
"""Above what /health takes for a pause (heartbeat.py)."""

MAX_LOOKUP, MAX_DRAFTS = 16, 32

DEVICES = ("auto", "cpu", "cuda")
DTYPES = ("auto", "float32", "float16", "bfloat16")
KV_CACHE_DTYPES = ("auto", "float32", "float16", "bfloat16", "fp8", "fp8_e4m3")
KERNELS = ("auto", "torch", "triton")
ROUNDED = ("int8", "int4", "int4-g64", "int4-g128", "fp8")
"""--quantization while loading; int4 alone has groups of 32 inputs."""
STORED = ("awq", "gptq", "compressed-tensors", "fp8", "fbgemm_fp8", "gguf")
"""--quantization that only names what the file is."""
TOOL_CALL_PARSERS = ("hermes", "llama3_json", "mistral", "pythonic")
REASONING_PARSERS = ("deepseek_r1", "qwen3")
POLICIES = ("fcfs", "priority", "shortest")


@dataclass(frozen=True, slots=True)
class SpeculativeConfig:
    """vLLM's names. A run of `prompt_lookup_min` to `prompt_lookup_max` tokens is looked up, the longest first."""

    method: str = "ngram"
    num_speculative_tokens: int = 4
    prompt_lookup_max: int = 4
    prompt_lookup_min: int = 2

    def __post_init__(self) -> None:
        _one_of("--speculative-config: method", self.method, ("ngram",))
        if not 1 <= self.prompt_lookup_min <= self.prompt_lookup_max <= MAX_LOOKUP:
            raise ConfigError(
                f"--speculative-config: 1 <= prompt_lookup_min <= prompt_lookup_max <= {MAX_LOOKUP} must hold, not "
                f"{self.prompt_lookup_min} and {self.prompt_lookup_max}"
            )
        if not 1 <= self.num_speculative_tokens <= MAX_DRAFTS:
            raise ConfigError(
                f"--speculative-config: num_speculative_tokens must lie in 1..{MAX_DRAFTS}, not "
                f"{self.num_speculative_tokens}"
            )


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """What the core process needs: the model, its numbers and its memory.

    Nothing here depends on the HTTP side. Values are fixed for the life of the process.
    """

    model: str
    """A folder with safetensors, a .gguf file, or a known name."""
    device: str = "auto"
    dtype: str = "auto"
    """Type of activations and of unquantised weights. `auto`: bfloat16 where the device has it, else float32."""
    quantization: str | None = None
    """None: as the file has the weights. One of `ROUNDED` rounds plain ones; one of `STORED` must be what the file is."""
    kv_cache_dtype: str = "auto"
    """`auto`: fp8 where the checkpoint says so; else the type that --dtype names; with `auto` there too, bfloat16 on the CPU
    (but float32 for weights in float32) and the activations' type on a GPU. fp8: by the checkpoint's scales or measured ones."""
    max_model_len: int | None = None
    """Tokens of prompt plus output. None: what the model declares, or what the pool holds if that is less."""
    max_num_seqs: int = 256
    max_num_batched_tokens: int = 2048
    """Token budget of one step. On the CPU the scheduler adapts below it (`step_target_ms`)."""
    block_size: int = BLOCK_SIZE
    enable_prefix_caching: bool = True
    gpu_memory_utilization: float = 0.9
    """Share of the GPU's memory for weights, activations and KV; no meaning on the CPU."""
    kv_cache_memory_bytes: int | None = None
    """None: on the CPU min(4 GiB, 40 % of what is free after the weights)."""
    num_blocks_override: int | None = None
    """Exactly so many KV blocks, whatever memory there is (vLLM's --num-gpu-blocks-override)."""
    tensor_parallel_size: int = 1
    """Ranks that share one model; each a process and, on CUDA, a GPU."""
    data_parallel_size: int = 1
    """Cores with a whole model each (of `tensor_parallel_size` ranks), among which requests are shared out."""
    data_parallel_rank: int = 0
    """Which of these this core is. No flag: the HTTP process says it."""
    distributed_timeout_s: int = 30
    """A rank that the others have waited for so long within a step is given up, and with it the engine."""
    scheduling_policy: str = "fcfs"
    seed: int | None = None
    """Seeds the seeds of requests that name none. None: taken from the system."""
    cpu_threads: int | None = None
    enforce_eager: bool = False
    kernels: str = "auto"
    """`auto`: Triton on a GPU, numba on the CPU, plain torch where neither runs; `torch` or `triton`: that path or none."""
    speculative_config: SpeculativeConfig | None = None
    """Guess tokens by what followed the same ones before; None: never."""
    enable_lora: bool = False
    lora_modules: tuple[tuple[str, str], ...] = ()
    """(Name, folder) of each adapter; a request names one instead of the model."""
    max_lora_rank: int = 64
    allow_runtime_lora_updating: bool = False
    """Callers may load adapters from any folder of this machine, and unload them."""
    max_logprobs: int = 20
    step_target_ms: int = 100
    """On the CPU a step's token budget adapts to this wall time; 0 keeps `max_num_batched_tokens` fixed."""

    def __post_init__(self) -> None:
        _one_of("--device", self.device.split(":")[0], DEVICES)
        _one_of("--dtype", self.dtype, DTYPES)
        _one_of("--kv-cache-dtype", self.kv_cache_dtype, KV_CACHE_DTYPES)
        _one_of("--kernels", self.kernels, KERNELS)
        if self.quantization is not None:
            _one_of("--quantization", self.quantization, tuple(dict.fromkeys((*ROUNDED, *STORED))))
        _one_of("--scheduling-policy", self.scheduling_policy, POLICIES)
        if self.block_size != BLOCK_SIZE:
            raise ConfigError(
                f"--block-size {self.block_size} is not supported: this engine's blocks hold {BLOCK_SIZE}"
            )
        for flag, value in (
            ("--max-model-len", self.max_model_len),
            ("--max-num-seqs", self.max_num_seqs),
            ("--max-num-batched-tokens", self.max_num_batched_tokens),
            ("--kv-cache-memory-bytes", self.kv_cache_memory_bytes),
            ("--num-gpu-blocks-override", self.num_blocks_override),
            ("--tensor-parallel-size", self.tensor_parallel_size),
            ("--data-parallel-size", self.data_parallel_size),
            ("--cpu-threads", self.cpu_threads),
            ("--max-lora-rank", self.max_lora_rank),
        ):
            if value is not None and not 1 <= value <= MAX_FLAG:
                raise ConfigError(
                    f"{flag} must be at least 1, not {value}"
                    if value < 1
                    else f"{flag} must be at most {MAX_FLAG}, not {value}"
                )
        if self.seed is not None and not -MAX_FLAG <= self.seed <= MAX_FLAG:
            raise ConfigError(f"--seed must be at least {-MAX_FLAG} and at most {MAX_FLAG}, not {self.seed}")
        if self.distributed_timeout_s < MIN_CORE_TIMEOUT_S:
            raise ConfigError(
                f"--distributed-timeout-seconds must be at least {MIN_CORE_TIMEOUT_S}, not {self.distributed_timeout_s}"
            )
        if self.step_target_ms < 0:
            raise ConfigError(f"--step-target-ms must be 0 (off) or more, not {self.step_target_ms}")
        for flag, given in (
            ("--lora-modules", bool(self.lora_modules)),
            ("--allow-runtime-lora-updating", self.allow_runtime_lora_updating),
        ):
            if given and not self.enable_lora:
                raise ConfigError(f"{flag} needs --enable-lora")
        names = [name for name, _ in self.lora_modules]
        if len(set(names)) < len(names):
            raise ConfigError(f"--lora-modules names an adapter twice ({', '.join(names)}): each needs its own name")
        if self.max_logprobs < 0:
            raise ConfigError(f"--max-logprobs must be 0 or more, not {self.max_logprobs}")
        if not 0.0 < self.gpu_memory_utilization <= 1.0:
            raise ConfigError(f"--gpu-memory-utilization must lie in (0, 1], not {self.gpu_memory_utilization}")

    @property
    def processes(self) -> int:
        """That compute, and share this machine's cores and memory."""
        return self.tensor_parallel_size * self.data_parallel_size


@dataclass(frozen=True, slots=True)
class ServerConfig:
    """What the HTTP process needs beside the engine."""

    host: str = "127.0.0.1"
    port: int = 8001
    """0: any free port; `port_file` then says which."""
    port_file: str | None = None
    parent_fd: int | None = None
    """Read end of a pipe; when it closes, every process of this engine ends."""
    served_model_names: tuple[str, ...] = ()
    """Empty: the model's own name."""
    api_key: str | None = None
    chat_template: str | None = None
    """A file, or the template itself; None: the model's own."""
    generation_config: str = "auto"
    """`auto`: EOS ids and sampling defaults of the model's generation_config.json; `vllm`: EOS ids only."""
    convert: str = "auto"
    """`auto`: embeddings where the model's folder says how; `embed`: of any model, by its last token."""
    enable_auto_tool_choice: bool = False
    """Models may call tools as they see fit; needs `tool_call_parser`."""
    tool_call_parser: str | None = None
    reasoning_parser: str | None = None
    max_waiting: int = 1024
    """Requests that may wait for a first step; above it: 503 with retry-after."""
    max_request_bytes: int = 32 * 1024 * 1024
    core_timeout_s: int = 20
    """A core process that has not answered for so long is ended, and the requests in it fail."""
    drain_s: int = 60
    """After SIGTERM running requests may take so long; then they are aborted."""

    def __post_init__(self) -> None:
        if not 0 <= self.port <= 65535:
            raise ConfigError(f"--port must lie in 0..65535, not {self.port}")
        if self.max_waiting < 1:
            raise ConfigError(f"--max-waiting must be at least 1, not {self.max_waiting}")
        if self.core_timeout_s < MIN_CORE_TIMEOUT_S:
            raise ConfigError(
                f"--core-timeout-seconds must be at least {MIN_CORE_TIMEOUT_S}, not {self.core_timeout_s}"
            )
        if self.drain_s < 0:
            raise ConfigError(f"--drain-seconds must be 0 or more, not {self.drain_s}")
        if self.enable_auto_tool_choice and self.tool_call_parser is None:
            raise ConfigError("--enable-auto-tool-choice needs --tool-call-parser")
        for flag, name, known in (
            ("--tool-call-parser", self.tool_call_parser, TOOL_CALL_PARSERS),
            ("--reasoning-parser", self.reasoning_parser, REASONING_PARSERS),
        ):
            if name is not None:
                _one_of(flag, name, known)
        _one_of("--convert", self.convert, ("auto", "embed"))
        _one_of("--generation-config", self.generation_config, ("auto", "vllm"))


def _one_of(flag: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise ConfigError(f"{flag} {value!r} is not supported; choose one of: {', '.join(allowed)}")
