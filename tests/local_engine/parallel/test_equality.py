"""A model over two processes draws the same tokens as in one: every family, adapters, quantised weights, GGUF."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from local_engine.config import EngineConfig
from local_engine.engine_core import EngineCore
from local_engine.errors import ModelError
from local_engine.messages import AddSequence
from local_engine.parallel.crew import Crew
from local_engine.parallel.group import Group
from local_engine.parallel.leader import LeadingRunner
from local_engine.parallel.shard import Shard
from local_engine.runner import ModelRunner
from local_engine.runner_protocol import Runner
from local_engine.sampling_params import SamplingParams
from local_engine.token_logprobs import TokenLogprobs

from ..models.llama_cpp import write_gguf
from ..models.test_adapters import LLAMA_TARGETS, save_adapter
from ..models.test_families import FAMILIES, save_tiny, threads

__all__ = ["threads"]

BIASED = {"attention_bias": True, "mlp_bias": True}
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    **FAMILIES,
    "Llama with biases": ("Llama", BIASED),
    "one KV head": ("Llama", {"num_key_value_heads": 1, "tie_word_embeddings": True}),
}
GREEDY = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True)
REQUESTS = (
    (list(range(3, 74)), GREEDY),
    ([9], SamplingParams(temperature=0.9, seed=4, max_tokens=12, ignore_eos=True, logprobs=3)),
    (list(range(20, 57)), SamplingParams(temperature=1.1, top_p=0.9, top_k=20, seed=7, max_tokens=12, ignore_eos=True)),
    (list(range(40, 61)), SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True, prompt_logprobs=1)),
)
Answers = dict[int, list[int]]
Told = list[tuple[int, float]]


@dataclass(frozen=True, slots=True)
class Ranks:
    """Rank 0 is this process."""

    crew: Crew
    group: Group

    @property
    def count(self) -> int:
        return self.group.shard.ranks

    def runner(self, model: Path, **config: Any) -> LeadingRunner:
        return LeadingRunner(settings(model, tensor_parallel_size=self.count, **config), self.crew, self.group)


@contextmanager
def started(count: int) -> Iterator[Ranks]:
    """Several models are loaded one after the other by the same processes: torch is imported once."""
    lost: list[str] = []
    config = settings(Path("none"), tensor_parallel_size=count, distributed_timeout_s=120)
    crew = Crew(config, lost.append)
    group = Group(Shard(0, count), torch.device("cpu"), crew.store, config.distributed_timeout_s)
    yield Ranks(crew, group)
    group.close()
    crew.close()
    assert not lost


@pytest.fixture(scope="module")
def ranks() -> Iterator[Ranks]:
    with started(2) as both:
        yield both


def settings(model: Path, **config: Any) -> EngineConfig:
    """Small steps: prompts are read in chunks, beside others that decode."""
    return EngineConfig(
        str(model), device="cpu", dtype="float32", cpu_threads=1, num_blocks_override=16, max_num_batched_tokens=32,
        max_model_len=112, **config,
    )  # fmt: skip


def answers(
    runner: Runner,
    config: EngineConfig,
    adapters: tuple[str | None, ...] = (None,) * 4,
    requests: Sequence[tuple[list[int], SamplingParams]] = REQUESTS,
) -> tuple[Answers, Told]:
    """What a core gives: tokens, and (token, log probability) of whatever asks for them."""
    core = EngineCore(config, runner)
    for number, ((prompt, params), adapter) in enumerate(zip(requests, adapters, strict=False)):
        core.handle(AddSequence(number, prompt, params, 0, b"", 0, None, adapter))
    tokens: Answers = {number: [] for number in range(len(requests))}
    told: list[TokenLogprobs] = []
    while core.has_work:
        for update in core.step():
            assert update.error is None, update.error
            tokens[update.id] += update.tokens
            told += [*update.logprobs, *update.prompt_logprobs]
    core.check_integrity()
    assert core.stats().free_blocks == runner.num_blocks
    return tokens, [(each.ids[0], each.values[0]) for each in told]


def check(
    ranks: Ranks, model: Path, requests: Sequence[tuple[list[int], SamplingParams]] = REQUESTS, **config: Any
) -> LeadingRunner:
    alone = answers(ModelRunner(settings(model, **config)), settings(model), requests=requests)
    split = ranks.runner(model, **config)
    tokens, told = answers(split, settings(model), requests=requests)
    assert tokens == alone[0]
    assert [token for token, _ in told] == [token for token, _ in alone[1]]
    assert [value for _, value in told] == pytest.approx([value for _, value in alone[1]], abs=1e-4)
    return split


@pytest.mark.parametrize("name", MODELS)
def test_every_family_draws_the_same_tokens_over_several_processes(name: str, ranks: Ranks, tmp_path: Path) -> None:
    save_tiny(tmp_path, *MODELS[name])
    check(ranks, tmp_path)


def test_a_rank_holds_its_part_and_no_more(ranks: Ranks, tmp_path: Path) -> None:
    save_tiny(tmp_path, "Llama", {})
    split, whole = ranks.runner(tmp_path)._model, ModelRunner(settings(tmp_path))._model
    layer, full = split.layers[0], whole.layers[0]
    assert (layer.qkv.weight.outputs, full.qkv.weight.outputs) == (64, 128)
    assert (
        isinstance(layer.mlp, tuple) and layer.mlp[0].weight.outputs == 2 * 32
    )  # of three pieces of 32 one; rank 1 has two
    assert (split.head.outputs, whole.head.outputs) == (48, 99)
    assert split._cache is not None and split._cache.layers[0][0].shape[1] == 1


@pytest.mark.parametrize("how", ["int8", "int4", "fp8"])
def test_rounded_weights_are_cut_on_their_groups(how: str, ranks: Ranks, tmp_path: Path) -> None:
    save_tiny(tmp_path, "Qwen2", {"intermediate_size": 128})
    check(ranks, tmp_path, quantization=how)


@pytest.mark.filterwarnings("ignore::RuntimeWarning:triton.runtime.interpreter")
def test_tritons_kernels_are_split_like_the_others(ranks: Ranks, tmp_path: Path) -> None:
    pytest.importorskip("triton")
    save_tiny(tmp_path, "Llama", {})
    short = replace(GREEDY, max_tokens=4)
    split = check(ranks, tmp_path, requests=[([5, 17, 3], short)], kernels="triton")
    assert "Triton kernels in the interpreter" in split.precision


def test_a_gguf_is_split_like_its_safetensors(ranks: Ranks, tmp_path: Path) -> None:
    save_tiny(tmp_path, "Llama", {})
    check(ranks, write_gguf(tmp_path, quantised="Q8_0"))


def test_adapters_are_split_with_their_matrices(ranks: Ranks, tmp_path: Path) -> None:
    model = save_tiny(tmp_path / "model", "Qwen2", {})
    targets = ("self_attn.k_proj", "self_attn.o_proj", "mlp.gate_proj", *LLAMA_TARGETS)
    for name, seed in (("one", 1), ("two", 2)):
        save_adapter(tmp_path / name, model, targets, seed)
    config: dict[str, Any] = {"enable_lora": True, "lora_modules": (("one", str(tmp_path / "one")),)}
    whole, split = ModelRunner(settings(tmp_path / "model", **config)), ranks.runner(tmp_path / "model", **config)
    for runner in (whole, split):
        runner.load_adapter("two", str(tmp_path / "two"))
    names = ("one", "two", None, "one")
    expected = answers(whole, settings(tmp_path / "model"), names)
    assert answers(split, settings(tmp_path / "model"), names)[0] == expected[0]
    with pytest.raises(ModelError, match="has no adapter_config.json"):
        split.load_adapter("three", str(tmp_path / "none"))
    for name in ("one", "two"):
        split.unload_adapter(name)
        whole.unload_adapter(name)
    for name, folder in (("two", "one"), ("one", "two")):  # under each other's name
        split.load_adapter(name, str(tmp_path / folder))
        whole.load_adapter(name, str(tmp_path / folder))
    swapped = answers(split, settings(tmp_path / "model"), names)[0]
    assert swapped == answers(whole, settings(tmp_path / "model"), names)[0] != expected[0]
    assert answers(split, settings(tmp_path / "model"), ("two", "one", None, "two"))[0] == expected[0]
