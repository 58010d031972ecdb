"""Decode steps through buffers that never move: padding changes nothing, tokens feed the next step unseen, nothing waits."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from local_engine.batch import ScheduledSequence, StepOutput
from local_engine.config import EngineConfig
from local_engine.cuda_graphs import CudaGraphs, decode_step, record
from local_engine.decode_step import SLOTS, TABLE, DecodeStep, Flight, graph_sizes
from local_engine.engine_core import EngineCore
from local_engine.messages import AddSequence
from local_engine.runner import ModelRunner
from local_engine.sampling_params import SamplingParams

from .models.tiny_llama import save_tiny_llama

pytest.importorskip("triton")
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning:triton.runtime.interpreter")

PROMPTS = ([5, 17, 3], list(range(20, 37)), [9])
PARAMS = (
    SamplingParams(temperature=0.0),
    SamplingParams(temperature=0.9, top_k=20, seed=4),
    SamplingParams(temperature=0.0, repetition_penalty=1.3),
)
TABLES = ([7, 2], [0, 5], [3, 1])
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("decode-step")
    save_tiny_llama(path, num_attention_heads=4, num_key_value_heads=2)
    return path


def engine(folder: Path, kernels: str) -> ModelRunner:
    return ModelRunner(
        EngineConfig(
            str(folder), device="cpu", dtype="float32", kernels=kernels, num_blocks_override=8, max_num_batched_tokens=64,
            max_model_len=32,
        )
    )  # fmt: skip


@pytest.fixture(scope="module")
def on_triton(folder: Path) -> ModelRunner:
    """For tests that write the pages they read."""
    return engine(folder, "triton")


def step_of(runner: ModelRunner, most: int = 4) -> DecodeStep:
    operations = runner._model._operations
    assert operations.draws_on_device is not None
    return DecodeStep(
        runner._model,
        most=most,
        max_context=32,
        device=CPU,
        draw=operations.draw,
        draw_on_device=operations.draws_on_device,
    )


def batch_of(
    tokens: Sequence[list[int]], position: int, params: Sequence[SamplingParams] = PARAMS
) -> list[ScheduledSequence]:
    """The last token of each; before the first step all of the prompt."""
    return [
        ScheduledSequence(
            number, own[-1:] if position else own, len(own) - 1 if position else 0, TABLES[number], True, params[number],
            output_position=position, prompt_token_ids=PROMPTS[number], output_token_ids=own[len(PROMPTS[number]) :],
        )
        for number, own in enumerate(tokens)
    ]  # fmt: skip


def follow(tokens: list[list[int]], output: StepOutput) -> None:
    assert output.nan_sequences == []
    for own, (token,) in zip(tokens, output.tokens, strict=True):
        own.append(token)


@pytest.fixture(scope="module")
def expected(folder: Path) -> list[list[int]]:
    """Four tokens for each prompt, on plain torch."""
    plain, tokens = engine(folder, "torch"), [list(prompt) for prompt in PROMPTS]
    for position in range(4):
        follow(tokens, plain.execute(batch_of(tokens, position)))
    return tokens


def poison(runner: ModelRunner) -> list[torch.Tensor]:
    """Fills the two pages of nobody; returns every cache."""
    cache = runner._model._cache
    assert cache is not None
    caches = [each for layer in cache.layers for each in layer]
    for each in caches:
        each[[4, 6]] = float("nan")
    return caches


def test_a_padded_step_gives_the_tokens_of_an_unpadded_one_and_touches_no_page_of_others(
    on_triton: ModelRunner, expected: list[list[int]]
) -> None:
    runner = on_triton
    caches, step, tokens = poison(runner), step_of(runner), [list(prompt) for prompt in PROMPTS]
    follow(tokens, runner.execute(batch_of(tokens, 0)))
    for position in (1, 2, 3):
        batch = batch_of(tokens, position)
        assert step.takes(batch) and not step.takes_ahead(batch)  # a penalty reads what came before
        follow(tokens, step.execute(batch))
    assert tokens == expected
    assert all(bool(each[[4, 6]].isnan().all()) for each in caches)


def test_tokens_feed_the_next_step_before_the_host_knows_them(
    on_triton: ModelRunner, expected: list[list[int]]
) -> None:
    runner, plain = on_triton, [*PARAMS[:2], PARAMS[0]]
    step, tokens = step_of(runner), [list(prompt) for prompt in PROMPTS]
    follow(tokens, runner.execute(batch_of(tokens, 0, plain)))
    first = step.launch(batch_of(tokens, 1, plain), [-1, -1, -1])
    # The sequences of the next step come in another order, and one of them has left.
    ahead = [
        replace(each, token_ids=[0], start=each.start + 1, output_position=2)
        for each in (batch_of(tokens, 1, plain)[number] for number in (1, 0))
    ]
    second = step.launch(ahead, [1, 0])
    found = [first.collect().tokens, second.collect().tokens]
    assert [[step_tokens[0] for step_tokens in found[0][:2]], [found[1][1][0], found[1][0][0]]] == [
        [expected[0][-3], expected[1][-3]], [expected[0][-2], expected[1][-2]],
    ]  # fmt: skip
    assert second.sequences == (1, 0)


def test_an_engine_that_launches_ahead_says_what_one_on_plain_torch_says(folder: Path) -> None:
    said = []
    for kernels in ("triton", "torch"):
        runner = engine(folder, kernels)
        if kernels == "triton":
            runner._decode = step_of(runner)
        core, tokens = EngineCore(EngineConfig("m"), runner), dict[int, list[int]]()
        for number, (prompt, params) in enumerate(zip(PROMPTS, PARAMS[:2] * 2, strict=False)):
            own = replace(params, max_tokens=4 + number)
            core.handle(AddSequence(number, list(prompt), own, 0, b"", 0, None))
        while core.has_work:
            for update in core.step():
                tokens.setdefault(update.id, []).extend(update.tokens)
        core.check_integrity()
        said.append(tokens)
    assert said[0] == said[1] and [len(said[0][number]) for number in range(3)] == [4, 5, 6]


def test_a_step_is_taken_only_where_every_sequence_draws_after_one_token(on_triton: ModelRunner) -> None:
    step = step_of(on_triton, most=2)
    one = batch_of([[1, 2]], 1)[0]
    assert step.takes([one, one]) and step.takes_ahead([one]) and not step.takes([one, one, one])
    for other in (
        replace(one, token_ids=[1, 2]), replace(one, samples=False), replace(one, adapter=0),
        replace(one, prompt_logprobs_from=1),
    ):  # fmt: skip
        assert not step.takes([one, other])
    for params in (SamplingParams(logprobs=1), SamplingParams(min_tokens=2), SamplingParams(logit_bias={3: 1.0})):
        assert step.takes([replace(one, params=params)]) and not step.takes_ahead([replace(one, params=params)])


def test_a_row_without_a_token_fails_its_sequence_alone() -> None:
    output = Flight((7, 8), torch.tensor([5, -1], dtype=torch.int32), None).collect()
    assert output.tokens == [[5], []] and output.nan_sequences == [8]


@given(most=st.integers(1, 2000))
def test_every_batch_has_a_size_that_pads_it_by_little(most: int) -> None:
    sizes = graph_sizes(most)
    assert sizes == tuple(sorted(set(sizes))) and sizes[-1] == min(most, 512)
    for batch in range(1, sizes[-1] + 1):
        size = next(size for size in sizes if size >= batch)
        assert size - batch < (4 if batch <= 8 else 8 if batch <= 64 else 16 if batch <= 256 else 32)
    assert len(sizes) <= 32


class NothingLeavesTheDevice(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Refuses what makes a host wait for a GPU: values read, and copies between the two."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        tensors = (each for each in tree_leaves((args, result)) if isinstance(each, torch.Tensor))
        devices = {each.device.type for each in tensors if each.dim()}  # a scalar of the host travels with the launch
        assert len(devices) <= 1, f"{func} reaches from one device to another"
        assert "_local_scalar_dense" not in str(func) and "nonzero" not in str(func), f"{func} waits for the device"
        return result


def instead_of_launches(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Kernels are named, not run."""
    from triton.runtime import interpreter

    launched: list[str] = []

    def launch(self: Any, *arguments: Any, **options: Any) -> None:
        launched.append(self.fn.__name__)

    monkeypatch.setattr(interpreter.InterpretedFunction, "run", launch)
    return launched


def test_what_a_graph_captures_never_waits_for_the_device(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On torch's `meta` device: its tensors have shapes and types, and nothing can be read from them."""
    step = step_of(engine(folder, "triton"))
    launched = instead_of_launches(monkeypatch)
    _replace_tensors(step, {id(each): each.to("meta") for each in _tensors(step)}, set())
    with NothingLeavesTheDevice():  # type: ignore[no-untyped-call]
        step.compute(4)
    layers = [*("_add_rms_norm", "_rotary", "_write", "_attend"), *("_add_rms_norm", "_gated_mul")]
    assert launched == [*layers, *layers, "_add_rms_norm"]


def _tensors(thing: Any, seen: set[int] | None = None) -> Iterator[torch.Tensor]:
    seen = set() if seen is None else seen
    if id(thing) in seen:
        return
    seen.add(id(thing))
    if isinstance(thing, torch.Tensor):
        yield thing
        return
    for each in _parts(thing).values():
        yield from _tensors(each, seen)


def _parts(thing: Any) -> dict[Any, Any]:
    """Of ours only: attributes of objects, and what containers hold."""
    if isinstance(thing, dict):
        return dict(thing)
    if isinstance(thing, list | tuple):
        return dict(enumerate(thing))
    if type(thing).__module__.split(".")[0] in ("local_engine", "kernels"):
        names = [*getattr(thing, "__dict__", ()), *getattr(type(thing), "__slots__", ())]
        return {name: getattr(thing, name) for name in names if hasattr(thing, name)}
    return {}


def _replace_tensors(thing: Any, fake_of: dict[int, torch.Tensor], seen: set[int]) -> Any:
    """The same thing with every tensor replaced, in place where it can be."""
    if isinstance(thing, torch.Tensor):
        return fake_of.get(id(thing), thing)
    if isinstance(thing, torch.device):
        return torch.device("meta")
    if isinstance(thing, tuple):
        return tuple(_replace_tensors(each, fake_of, seen) for each in thing)
    if id(thing) in seen:
        return thing
    seen.add(id(thing))
    for name, each in _parts(thing).items():
        other = _replace_tensors(each, fake_of, seen)
        if isinstance(thing, dict | list):
            thing[name] = other
        elif other is not each:
            object.__setattr__(thing, name, other)
    return thing


def test_a_batch_is_one_copy_of_integers(on_triton: ModelRunner) -> None:
    step = step_of(on_triton)
    step.load(batch_of([list(range(40, 60)), [8, 9]], 1), 4, [-1, 1])
    numbers = step._numbers[: (TABLE + 2) * 4].view(TABLE + 2, 4)
    assert numbers.tolist() == [
        [59, 9, 0, 0], [-1, 1, -1, -1], [19, 1, 0, 0], [2 * 16 + 3, 0 * 16 + 1, -1, -1], [7, 0, 0, 0], [2, 0, 0, 0],
    ]  # fmt: skip
    step.pad(4)
    assert bool((step._numbers[SLOTS * 4 : TABLE * 4] == -1).all())


@pytest.mark.parametrize(
    "offence",
    [
        lambda x: x.sum().item(), lambda x: bool(x.any()), lambda x: x.tolist(), lambda x: x.cpu(), lambda x: x.nonzero(),
        lambda x: x[torch.tensor([0])], lambda x: x[x > 0],
    ],
)  # fmt: skip
def test_what_would_wait_is_found(offence: Callable[[torch.Tensor], Any]) -> None:
    there = torch.zeros(3, device="meta")
    with NothingLeavesTheDevice(), pytest.raises((AssertionError, RuntimeError)):  # type: ignore[no-untyped-call]
        offence(there)


class Recorded:
    """Stands for torch.cuda where there is none: a graph runs again what was computed while it was recorded."""

    def __init__(self) -> None:
        self.log: list[str] = []

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        @contextmanager
        def within(*given: object, **named: object) -> Iterator[None]:
            yield

        @contextmanager
        def record(graph: Any, *, pool: object, stream: object) -> Iterator[None]:
            assert pool == "pool" and isinstance(stream, Stream)
            before = len(self.log)
            yield
            graph.holds = self.log[before:]
            self.log.append("recorded")

        class Stream:
            def wait_stream(self, other: object) -> None:
                assert isinstance(other, Stream)

        class Graph:
            holds: list[str]

            def replay(graph) -> None:
                self.log.append(f"replayed {graph.holds}")

        for name, value in {
            "mem_get_info": lambda device: (5 << 30, 8 << 30), "graph_pool_handle": lambda: "pool", "Stream": Stream,
            "current_stream": Stream, "CUDAGraph": Graph, "graph": record, "synchronize": lambda: None, "device": within,
            "stream": within,
        }.items():  # fmt: skip
            monkeypatch.setattr(torch.cuda, name, value)


def test_graphs_are_recorded_the_largest_first_on_padding_and_after_two_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda = Recorded()
    cuda.install(monkeypatch)
    graphs = CudaGraphs(
        lambda size: cuda.log.append(f"computed {size}"), lambda size: cuda.log.append(f"padded {size}"), (1, 4), CPU
    )
    assert graphs.capture() == 0
    assert cuda.log == [
        *("padded 4", "computed 4", "computed 4", "computed 4", "recorded"),
        *("padded 1", "computed 1", "computed 1", "computed 1", "recorded"),
    ]  # fmt: skip
    graphs.run(1)
    assert cuda.log[-1] == "replayed ['computed 1']"


def test_an_engine_decodes_by_its_graphs_and_says_why_it_has_none(
    folder: Path, on_triton: ModelRunner, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    Recorded().install(monkeypatch)
    caplog.set_level("INFO")
    runner, config, said = on_triton, EngineConfig("m", max_num_seqs=2), list[str]()
    step = decode_step(config, runner._model, runner._model._operations, 32, CPU)
    assert step is not None and step.sizes == (1, 2)
    record(step, CPU, said.append)
    assert said == ["recording CUDA graphs of 2 sizes"]
    assert "Graph capturing finished in" in caplog.text
    plain = engine(folder, "torch")
    assert decode_step(config, plain._model, plain._model._operations, 32, CPU) is None
    assert "no CUDA graphs (torch on cpu, float32)" in caplog.text
