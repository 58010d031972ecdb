"""Vectors of prompts beside transformers, alone and in a batch, in any chunks, over the cache and in a small pool."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from local_engine.config import EngineConfig
from local_engine.engine_core import EngineCore
from local_engine.messages import AddSequence
from local_engine.runner import ModelRunner
from local_engine.sampling_params import SamplingParams
from local_engine.sequence import FinishReason
from local_engine.server.embeddings import pooling_of

from .test_families import save_tiny, threads

__all__ = ["threads"]

PROMPTS = [[5], list(range(3, 60)), [*range(3, 40), 7, 7], [9] * 33]


@pytest.mark.parametrize("mode", ["last", "mean"])
def test_vectors_equal_transformers_whatever_the_chunks_and_neighbours(mode: str, tmp_path: Path) -> None:
    model = save_tiny(tmp_path, "Qwen3", {"head_dim": 32})
    with torch.inference_mode():
        hidden = [model.model(torch.tensor([prompt])).last_hidden_state[0] for prompt in PROMPTS]
    expected = [states[-1] if mode == "last" else states.mean(dim=0) for states in hidden]
    base = {"device": "cpu", "dtype": "float32", "num_blocks_override": 16}
    runner = ModelRunner(EngineConfig(str(tmp_path), **base))  # type: ignore[arg-type]
    for budget in (7, 64):
        core = EngineCore(EngineConfig(str(tmp_path), max_num_batched_tokens=budget, **base), runner)  # type: ignore[arg-type]
        for _ in range(2):  # the second time the prompts are in the cache
            for number, prompt in enumerate(PROMPTS):
                params = SamplingParams(max_tokens=0, pooling=mode)  # type: ignore[arg-type]
                core.handle(AddSequence(number, prompt, params, 0, b"", 0, None))
            core.handle(AddSequence(9, [4, 5], SamplingParams(max_tokens=4), 0, b"", 0, None))
            vectors = {}
            while core.has_work:
                for update in core.step():
                    if update.embedding:
                        vectors[update.id] = update.embedding
                        assert update.finish_reason is FinishReason.STOP and update.tokens == []
            core.check_integrity()
            for number, wanted in enumerate(expected):
                np.testing.assert_allclose(vectors[number], wanted.numpy(), atol=1e-4)


def test_the_folder_says_how_to_pool(tmp_path: Path) -> None:
    assert pooling_of(tmp_path) is None
    (tmp_path / "1_Pooling").mkdir()
    for name, mode in (("lasttoken", "last"), ("mean_tokens", "mean")):
        (tmp_path / "1_Pooling" / "config.json").write_text(
            f'{{"pooling_mode_{name}": true, "pooling_mode_max": false}}'
        )
        assert pooling_of(tmp_path) == mode
    (tmp_path / "1_Pooling" / "config.json").write_text('{"pooling_mode_cls_token": true}')
    with pytest.raises(
        Exception, match="pools by pooling_mode_cls_token; this engine pools by the last token or the mean"
    ):
        pooling_of(tmp_path)
