"""Safetensors folders: sharded and whole; broken ones are named with cause and remedy (rule 43)."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from local_engine.errors import ModelError
from local_engine.weights.safetensors import INDEX, SafetensorsSource

from ..models.tiny_llama import save_tiny_llama


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    save_tiny_llama(tmp_path)
    return tmp_path


def test_a_sharded_folder_gives_what_a_whole_one_gives(folder: Path, tmp_path: Path) -> None:
    shards = tmp_path / "shards"
    save_tiny_llama(shards, max_shard_size="20KB")
    assert (shards / INDEX).is_file()
    name = "model.layers.1.mlp.down_proj.weight"
    whole, sharded = SafetensorsSource(folder), SafetensorsSource(shards)
    assert torch.equal(whole.matrix(name).dequantise(), sharded.matrix(name).dequantise())


def test_rule_43_a_missing_shard_is_named(folder: Path, tmp_path: Path) -> None:
    shards = tmp_path / "shards"
    save_tiny_llama(shards, max_shard_size="20KB")
    gone = sorted(shards.glob("*.safetensors"))[1]
    gone.unlink()
    with pytest.raises(ModelError, match=f"{gone.name} is missing although the index names it"):
        SafetensorsSource(shards)


def test_rule_43_a_truncated_file_is_named(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(ModelError, match=r"model\.safetensors is truncated or corrupt .*download it again"):
        SafetensorsSource(folder)


def test_rule_43_an_invalid_header_is_named(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(b"\xff" * 64)
    with pytest.raises(ModelError, match=r"model\.safetensors is truncated or corrupt"):
        SafetensorsSource(folder)


def test_rule_43_a_git_lfs_pointer_is_named(folder: Path) -> None:
    (folder / "model.safetensors").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n")
    with pytest.raises(ModelError, match="git-LFS pointer.*git lfs pull"):
        SafetensorsSource(folder)


def test_a_folder_without_weights_and_a_missing_tensor_are_named(folder: Path) -> None:
    with pytest.raises(ModelError, match=r"has no tensor model\.layers\.9"):
        SafetensorsSource(folder).matrix("model.layers.9.mlp.up_proj.weight")
    (folder / "model.safetensors").unlink()
    with pytest.raises(ModelError, match=r"no \*\.safetensors file"):
        SafetensorsSource(folder)
