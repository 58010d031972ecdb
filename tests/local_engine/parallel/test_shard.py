"""Which part of a model a rank holds: together the parts are the whole, and each rank has what its own queries read."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from local_engine.errors import ConfigError
from local_engine.models.config import ModelConfig
from local_engine.parallel.shard import Shard, check_split, piece_of, splits
from local_engine.planner.kv import valid_splits
from local_engine.planner.shape import known_names, read_shape
from local_engine.weights.embedding import EmbeddingPart, TorchEmbedding


def model(heads: int, kv_heads: int) -> ModelConfig:
    return ModelConfig("Any", 99, 64, 96, 2, heads, kv_heads, 16, 1e-6, {}, 256, False, "float32")


@given(st.integers(1, 8), st.integers(1, 8), st.integers(1, 16))
def test_every_query_head_lies_beside_the_kv_head_that_it_reads(kv_heads: int, per_kv_head: int, ranks: int) -> None:
    heads = kv_heads * per_kv_head
    if not splits(heads, kv_heads, ranks):
        return
    whole, seen = model(heads, kv_heads), []
    for rank in range(ranks):
        shard = Shard(rank, ranks)
        own, local = shard.kv_heads(whole), shard.config(whole)
        assert (local.heads * ranks, local.kv_heads) == (heads, max(1, kv_heads // ranks))
        for place, head in enumerate(shard.heads(whole)):
            seen.append(head)
            assert own[place // (local.heads // local.kv_heads)] == head // per_kv_head
    assert seen == list(range(heads))


@given(st.integers(1, 4096), st.integers(1, 16), st.sampled_from([1, 32, 64, 128]))
def test_runs_are_whole_pieces_and_make_up_the_width(width: int, ranks: int, block: int) -> None:
    piece = piece_of(width, ranks, block)
    assert piece % block == 0
    runs = Shard(0, ranks).runs(width, piece)
    assert [at for run in runs for at in run] == list(range(width))
    assert all(run.start % piece == 0 for run in runs if run)
    pieces = [-(-len(run) // piece) for run in runs]
    assert max(pieces) - min(pieces) <= 1
    if block == 1 and width >= ranks:
        assert min(pieces) >= 1


@pytest.mark.parametrize(
    ("heads", "kv_heads", "valid"), [(9, 3, "1, 3, 9"), (32, 8, "1, 2, 4, 8, 16, 32"), (14, 2, "1, 2, 14")]
)
def test_an_impossible_split_is_refused_naming_the_valid_ones(heads: int, kv_heads: int, valid: str) -> None:
    with pytest.raises(
        ConfigError, match=f"size 5 does not divide {heads} query and {kv_heads} KV heads; valid are {valid}$"
    ):
        check_split(model(heads, kv_heads), 5)
    for ranks in map(int, valid.split(", ")):
        check_split(model(heads, kv_heads), ranks)


def test_parts_of_an_embedding_add_up_to_its_rows() -> None:
    weight = torch.randn(99, 8, generator=torch.Generator().manual_seed(1))
    whole, ids = TorchEmbedding(weight), torch.tensor([0, 98, 31, 32, 33, 50, 0])
    parts = [EmbeddingPart(whole, run) for run in Shard(0, 3).runs(99, 8)]
    moved = [part.on(torch.device("cpu"), torch.float32) for part in parts]
    again = [part.on(torch.device("cpu"), torch.float32) for part in moved]
    for each in (parts, moved, again):
        torch.testing.assert_close(sum(part.rows(ids) for part in each), weight[ids], rtol=0, atol=0)
    assert [len(part._kept._weight) for part in moved] == [32, 32, 35]  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", [name for name in known_names() if not read_shape(name).latent])
def test_the_planner_says_what_the_engine_takes(name: str) -> None:
    shape = read_shape(name)
    assert valid_splits(shape) == [ranks for ranks in range(1, 17) if splits(shape.heads, shape.kv_heads, ranks)]


def test_smollm2_itself_is_refused_before_anything_is_started(
    capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    from local_engine.config import EngineConfig
    from local_engine.parallel.leader import lead

    with pytest.raises(ConfigError, match="does not divide 9 query and 3 KV heads; valid are 1, 3, 9"):
        lead(EngineConfig("smollm2-135m-instruct", tensor_parallel_size=2), print, print)
    assert capfd.readouterr().out == ""
