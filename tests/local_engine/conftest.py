from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from local_engine.tokenizer import Tokenizer, load_tokenizer

from .tiny import write_model_folder


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model folder with the tokenizer of bytes and no weights: the tiny runner needs none."""
    return write_model_folder(tmp_path_factory.mktemp("tiny") / "tiny-model")


@pytest.fixture(scope="session")
def tiny_tokenizer(tiny_folder: Path) -> Tokenizer:
    return load_tokenizer(tiny_folder)


@pytest.fixture
def one_thread() -> Iterator[None]:
    """For hundreds of tiny torch operations: threads would only wait for each other."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
