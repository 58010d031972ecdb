"""Errors of the field (rules 39, 43): each says its remedy, and docs/troubleshooting.md has it as a heading, word for word."""

from __future__ import annotations

import json
import re
import shutil
import socket
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from gguf import GGUFWriter
from safetensors.torch import load_file, save_file

from local_engine import kv_cache, metrics
from local_engine.batch import ScheduledSequence, StepOutput
from local_engine.config import EngineConfig, ServerConfig
from local_engine.engine_core import EngineCore
from local_engine.errors import ContextOverflow, Overloaded
from local_engine.exit_words import exit_words
from local_engine.heartbeat import CoreWatch
from local_engine.messages import AddSequence
from local_engine.models.gguf_config import read_gguf_config
from local_engine.models.layer import LayerLoader
from local_engine.parallel.crew import Member
from local_engine.parallel.group import Group
from local_engine.parallel.leader import lead
from local_engine.parallel.shard import Shard
from local_engine.runner import ModelRunner
from local_engine.sampling_params import SamplingParams
from local_engine.server.grammar_limits import MAX_TEXT
from local_engine.server.requests import ChatRequest, CompletionRequest
from local_engine.server.run import _listen
from local_engine.server.service import Service
from local_engine.server.structure import grammar_of
from local_engine.tokenizer import load_tokenizer
from local_engine.weights.gguf import read_gguf
from local_engine.weights.model_store import resolve_model

from .models.test_adapters import save_adapter
from .models.test_families import save_tiny, threads
from .server.running import ROOT
from .tiny import TinyRunner
from .weights.test_gguf_lies import WIDTH, write

__all__ = ["threads"]

PAGE = (ROOT / "docs" / "troubleshooting.md").read_text().split("\n## ")[1]
HEADINGS = re.findall(r"^### `(.*)`$", PAGE, re.MULTILINE)
PROMPT = AddSequence(1, [1, 2, 3], SamplingParams(max_tokens=4), 0, b"", 0, None)


class Field:
    """A model's folder to break, and the ways of breaking it. Each returns what the engine says, or raises it."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder, self.monkeypatch = folder, monkeypatch
        self.model = save_tiny(folder, "Qwen2", {})

    def load(self, **config: Any) -> ModelRunner:
        return ModelRunner(EngineConfig(str(self.folder), device="cpu", dtype="float32", **config))

    def unknown_architecture(self) -> None:
        path = self.folder / "config.json"
        path.write_text(path.read_text().replace("Qwen2ForCausalLM", "RwkvForCausalLM"))
        self.load()

    def no_model(self) -> None:
        (self.folder / "config.json").unlink()
        resolve_model(str(self.folder))

    def no_weights(self) -> None:
        (self.folder / "model.safetensors").unlink()
        self.load()

    def lfs_pointer(self) -> None:
        (self.folder / "model.safetensors").write_text(
            "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n"
        )
        self.load()

    def truncated(self) -> None:
        path = self.folder / "model.safetensors"
        path.write_bytes(path.read_bytes()[:-100])
        self.load()

    def invalid_header(self) -> None:
        (self.folder / "model.safetensors").write_bytes(b"\xff" * 64)
        self.load()

    def truncated_gguf(self) -> None:
        path = self.folder / "m.gguf"
        writer = GGUFWriter(str(path), "llama")
        writer.add_tensor("t", torch.zeros(4, 32).numpy())
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        path.write_bytes(path.read_bytes()[:-100])
        read_gguf(path)

    def impossible_shape(self) -> None:
        read_gguf(write(self.folder / "m.gguf", shapes={"blk.0.attn_k": (WIDTH, 0)}))

    def two_of_one_name(self) -> None:
        read_gguf(write(self.folder / "m.gguf", twice="blk.0.attn_k"))

    def impossible_size(self) -> None:
        self.change("num_hidden_layers", 0)

    def contradicting_weights(self) -> None:
        self.change("intermediate_size", 7)

    def change(self, name: str, value: int) -> None:
        path = self.folder / "config.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), name: value}))
        self.load()

    def other_family(self) -> None:
        path = self.folder / "config.json"
        path.write_text(path.read_text().replace("Qwen2ForCausalLM", "Qwen3ForCausalLM"))
        self.load()

    def no_tokenizer(self) -> None:
        load_tokenizer(self.folder)

    def unread_tokenizer(self) -> None:
        self.gguf_header({"tokenizer.ggml.model": "bert"})

    def unread_split(self) -> None:
        self.gguf_header({"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "chatglm-bpe"})

    def gguf_header(self, values: dict[str, str]) -> None:
        writer = GGUFWriter(str(self.folder / "m.gguf"), "llama")
        writer.add_token_list(["a"])
        for name, value in values.items():
            writer.add_string(name, value)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.close()
        load_tokenizer(self.folder / "m.gguf")

    def uneven_layers(self) -> None:
        read_gguf_config(
            self.folder / "m.gguf", {"general.architecture": "llama", "llama.attention.head_count": [4, 2]}, {}
        )

    def no_template(self) -> None:
        nothing: Any = None
        service = Service(nothing, nothing, None, ("m",), ServerConfig(), 0, "0")
        service.render(ChatRequest(model="m", messages=[{"role": "user", "content": "x"}]))

    def narrow_cache(self) -> None:
        self.load(kv_cache_dtype="fp8")

    def scales_of_some_layers(self) -> None:
        path = self.folder / "model.safetensors"
        scales = {f"model.layers.0.self_attn.{kind}_scale": torch.ones(1) for kind in "kv"}
        save_file({**load_file(path), **scales}, path, metadata={"format": "pt"})
        self.load(kv_cache_dtype="fp8", kernels="torch")

    def weights_too_large(self) -> None:
        def fail(loader: LayerLoader, number: int) -> None:
            raise MemoryError("cannot allocate")

        self.monkeypatch.setattr(LayerLoader, "layer", fail)
        self.load()

    def no_room_for_a_block(self) -> None:
        self.load(kv_cache_memory_bytes=10)

    def no_memory_for_the_cache(self) -> None:
        def fail(*_: object) -> torch.Tensor:
            raise RuntimeError("DefaultCPUAllocator: can't allocate memory")

        self.monkeypatch.setattr(kv_cache, "_zeros", fail)
        self.load(num_blocks_override=4)

    def context_beyond_the_cache(self) -> None:
        EngineCore(EngineConfig("m", max_model_len=128), TinyRunner(4, 128))

    def step_out_of_memory(self) -> str:
        class Exhausted(TinyRunner):
            def execute(self, batch: Sequence[ScheduledSequence]) -> StepOutput:
                raise RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory")

        core = EngineCore(EngineConfig("m"), Exhausted(8, 64))
        core.handle(PROMPT)
        return str(core.step()[0].error)

    def killed(self) -> str:
        return f"The engine core died ({exit_words(-9)})."

    def rank_killed(self) -> str:
        member = Member.__new__(Member)
        member.rank, member.process = 1, subprocess.Popen(["sleep", "60"])
        member.process.kill()
        return f"{member.death()}."

    def rank_frozen(self) -> str:
        member = Member.__new__(Member)
        member.rank, member.watch = 1, CoreWatch(5)
        return f"{member.silence}."

    def impossible_split(self) -> None:
        lead(EngineConfig(str(self.folder), device="cpu", tensor_parallel_size=3), print, print)

    def parted_group(self) -> None:
        save_tiny(self.folder, "Qwen2", {"intermediate_size": 128})
        self.too_few_groups()

    def too_few_groups(self) -> None:
        group = Group.__new__(Group)
        group.shard = Shard(0, 4)
        config = EngineConfig(str(self.folder), device="cpu", dtype="float32", quantization="int4")
        ModelRunner(config, group=group)

    def too_long(self) -> None:
        raise ContextOverflow(limit=8, prompt=9, output=None, param="prompt")

    def foreign_adapter(self) -> None:
        other = save_tiny(self.folder / "other", "Qwen2", {"hidden_size": 32})
        save_adapter(self.folder / "adapter", other, ("self_attn.q_proj",), 1)
        self.load(enable_lora=True, lora_modules=(("tone", str(self.folder / "adapter")),), num_blocks_override=4)

    def too_large_a_grammar(self) -> None:
        grammar_of(CompletionRequest(model="m", prompt="x", guided_regex="a" * (MAX_TEXT + 1)))

    def port_in_use(self) -> None:
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            _listen(ServerConfig(port=taken.getsockname()[1]))

    def overloaded(self) -> None:
        raise Overloaded("3 sequences are waiting already (--max-waiting 2). Try later.")


CASES = [name for name in vars(Field) if not name.startswith("_") and name not in ("load", "change", "gguf_header")]


def said(case: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    happen: Callable[[], str | None] = getattr(Field(folder, monkeypatch), case)
    try:
        return str(happen())
    except Exception as error:
        return str(error)


def fits(heading: str, message: str) -> bool:
    return re.fullmatch(".*".join(re.escape(part) for part in heading.split("…")), message, re.DOTALL) is not None


@pytest.mark.parametrize("case", CASES)
def test_rule_43_every_error_of_the_field_is_a_heading_of_the_page(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    message = said(case, tmp_path, monkeypatch)
    assert len([heading for heading in HEADINGS if fits(heading, message)]) == 1, message


def test_every_heading_is_an_error_that_is_raised_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    messages = []
    for case in CASES:
        with monkeypatch.context() as patch:
            messages.append(said(case, tmp_path / case, patch))
    shutil.rmtree(tmp_path)
    assert [heading for heading in HEADINGS if not any(fits(heading, message) for message in messages)] == []


def test_every_metric_and_flag_of_the_page_is_there() -> None:
    names = {metrics.OURS + name for name, *_ in metrics._GAUGES} | {
        f"{metrics.OURS}{n}_total" for n, *_ in metrics._COUNTERS
    }
    named = set(re.findall(r"`(metergate_engine_\w+)`", PAGE))
    assert named and named <= names
    flags = json.dumps(Path(ROOT / "local_engine" / "cli.py").read_text())
    assert [flag for flag in set(re.findall(r"--[a-z][a-z-]+", PAGE)) if flag not in flags] == []
