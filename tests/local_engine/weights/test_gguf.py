"""GGUF files: equal to the gguf package's own reader; broken ones are named with cause and remedy (rule 43)."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from gguf import GGUFWriter
from gguf.constants import GGMLQuantizationType
from gguf.gguf_reader import GGUFReader
from gguf.quants import dequantize, quantize

from local_engine.errors import ModelError
from local_engine.weights.gguf import read_gguf
from local_engine.weights.gguf_source import Place, gguf_place, unpermuted_rows
from local_engine.weights.model_store import resolve_model
from local_engine.weights.source import open_weights


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A small file with every kind of value and several storages."""
    path = tmp_path / "small.gguf"
    writer = GGUFWriter(str(path), "llama")
    writer.add_block_count(2)
    writer.add_rope_freq_base(10000.5)
    writer.add_bool("flag", True)
    writer.add_array("words", ["ein", "zwei", "三"])
    writer.add_array("numbers", [1, 2, 3])
    random = np.random.default_rng(1)
    for kind in ("F32", "F16", "Q8_0", "Q4_1", "Q4_0", "Q5_1"):
        values = random.standard_normal((4, 64), dtype=np.float32)
        storage = GGMLQuantizationType[kind]
        writer.add_tensor(f"t.{kind}", quantize(values, storage), raw_dtype=storage)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_metadata_and_tensors_equal_the_gguf_packages_reader(file: Path) -> None:
    ours, theirs = read_gguf(file), GGUFReader(str(file))
    assert ours.metadata["llama.block_count"] == 2
    assert ours.metadata["llama.rope.freq_base"] == 10000.5
    assert ours.metadata["flag"] is True
    assert ours.metadata["words"] == ["ein", "zwei", "三"]
    assert ours.metadata["numbers"] == [1, 2, 3]
    assert set(ours.tensors) == {tensor.name for tensor in theirs.tensors}
    for tensor in theirs.tensors:
        mine = ours.tensors[tensor.name]
        assert (mine.kind, mine.shape) == (tensor.tensor_type.name, (4, 64))
        np.testing.assert_array_equal(mine.dequantised(), dequantize(tensor.data, tensor.tensor_type).reshape(4, 64))


def test_rule_43_a_truncated_file_names_the_tensor_and_the_remedy(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-200])
    with pytest.raises(ModelError, match=r"small\.gguf is truncated: tensor t\.Q5_1 ends at byte .*download it again"):
        read_gguf(file)


def test_rule_43_a_file_that_ends_in_its_header_is_named(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:150])
    with pytest.raises(ModelError, match="truncated or corrupt in its header"):
        read_gguf(file)


def test_rule_43_a_git_lfs_pointer_is_named(tmp_path: Path) -> None:
    path = tmp_path / "pointer.gguf"
    path.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 94000000\n")
    with pytest.raises(ModelError, match="git-LFS pointer.*git lfs pull"):
        read_gguf(path)


def test_rule_43_another_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "page.gguf"
    path.write_text("<!DOCTYPE html><title>404</title>")
    with pytest.raises(ModelError, match="not a GGUF file"):
        read_gguf(path)


def test_rule_42_the_row_order_of_queries_and_keys_is_undone() -> None:
    heads, head_dim = 3, 8
    original = np.arange(heads * head_dim)
    # convert_hf_to_gguf.py: reshape(heads, 2, head_dim / 2).swapaxes(1, 2)
    stored = original.reshape(heads, 2, head_dim // 2).swapaxes(1, 2).reshape(-1)
    np.testing.assert_array_equal(stored[unpermuted_rows(heads, head_dim)], original)


def test_names_are_llama_cpps() -> None:
    assert gguf_place("model.layers.17.self_attn.o_proj.weight") == Place("blk.17.attn_output.weight")
    assert gguf_place("model.embed_tokens.weight") == Place("token_embd.weight")
    assert gguf_place("model.layers.1.post_attention_layernorm.weight") == Place("blk.1.ffn_norm.weight")
    assert gguf_place("model.layers.1.post_attention_layernorm.weight", "gemma3") == Place(
        "blk.1.post_attention_norm.weight"
    )
    assert gguf_place("model.layers.1.mlp.experts.12.up_proj.weight") == Place("blk.1.ffn_up_exps.weight", 12)
    assert gguf_place("model.vision_tower.x.weight") is None


def test_only_a_file_with_bfloat16_matrices_asks_for_bfloat16_linears() -> None:
    source = open_weights(resolve_model("smollm2-135m-instruct"))
    assert source.precision == "Q4_1 and Q8_0"
    assert source.stores_bfloat16 is False
