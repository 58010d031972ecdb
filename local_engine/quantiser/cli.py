"""`metergate engine quantize MODEL --awq|--int8|--fp8 --output DIR`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import torch

from ..config import EngineConfig
from ..errors import ConfigError, EngineError
from ..runner import ModelRunner, usable_cores
from ..tokenizer import load_tokenizer
from ..weights.model_store import resolve_model
from ..weights.source import open_weights
from .awq import GROUPS, common_group, record_inputs, scale_for_awq
from .model import read_model
from .perplexity import CALIBRATION, EVALUATION, perplexity, text
from .write import awq_config, awq_tensors, compressed_config, fp8_tensors, int8_tensors, refuse_full, write_checkpoint

MOST_TOKENS = 512
"""Of the calibration text, and of a text to measure on."""


def quantize(argv: Sequence[str]) -> int:
    """Writes the checkpoint and prints the perplexities before and after; returns the exit status. What cannot be done is one
    line on stderr and status 1."""
    given = _parser().parse_args(argv)
    try:
        _quantize(given)
    except EngineError as error:
        print(f"local_engine: error: {error}", file=sys.stderr)
        return 1
    return 0


def _quantize(given: argparse.Namespace) -> None:
    path, output = resolve_model(given.model), Path(given.output)
    refuse_full(output)
    calibration = text(CALIBRATION) if given.calibration is None else _read(Path(given.calibration))
    threads = usable_cores()
    torch.set_num_threads(threads)
    source, tokenizer = open_weights(path), load_tokenizer(path)
    model = read_model(source)
    if given.how == "awq":
        group = common_group(model, given.group_size)
        if not given.plain:
            inputs = record_inputs(source, tokenizer.encode(calibration)[:MOST_TOKENS], threads)
            scale_for_awq(model, inputs, group, lambda words: print(words, file=sys.stderr))
        write_checkpoint(
            model, lambda weight: awq_tensors(weight, group), awq_config(group), path, source.config, output
        )
    else:
        tensors = int8_tensors if given.how == "int8" else fp8_tensors
        write_checkpoint(model, tensors, compressed_config(given.how), path, source.config, output)
    ids = tokenizer.encode(text(EVALUATION))[:MOST_TOKENS]
    before, after = (perplexity(_runner(each), ids) for each in (str(path), str(output)))
    print(f"{output}: perplexity {before:.3f} before, {after:.3f} after ({after / before - 1:+.2%}, {len(ids)} tokens)")


def _read(path: Path) -> str:
    try:
        return path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--calibration {path}: it is no text that can be read: {error}") from error


def _runner(model: str) -> ModelRunner:
    return ModelRunner(
        EngineConfig(
            model,
            device="cpu",
            dtype="float32",
            num_blocks_override=MOST_TOKENS // 16,
            max_num_batched_tokens=MOST_TOKENS,
        )
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="metergate engine quantize",
        description="Write a checkpoint with the matrices of layers in 4 or 8 bits, which this engine and others load.",
        allow_abbrev=False,
    )
    parser.add_argument("model", help="a folder with safetensors, a .gguf file, or a known name")
    how = parser.add_mutually_exclusive_group(required=True)
    for flag, words in (
        ("awq", "4 bits, scales searched on a calibration text (AutoAWQ's layout)"),
        ("int8", "8-bit integers, a scale for each output (compressed-tensors)"),
        ("fp8", "8-bit floats, a scale for each output (compressed-tensors)"),
    ):
        how.add_argument(f"--{flag}", dest="how", action="store_const", const=flag, help=words)
    parser.add_argument("--output", required=True, help="a folder that is empty or not there yet")
    parser.add_argument("--group-size", type=int, choices=GROUPS, help="of --awq (default: the largest that divides)")
    parser.add_argument("--calibration", help="a text file for --awq instead of the shipped text")
    parser.add_argument("--plain", action="store_true", help="--awq without its search, to compare with")
    return parser
