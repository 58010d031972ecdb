"""A model small enough to be an oracle: its keys and values are the tokens themselves, read back through the block table.

The next token is a hash of every token read back (or a copy of the prompt), so that a page shared wrongly, freed too early
or filled twice changes the output. Run as a program, it is an engine core with this runner.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from local_engine.batch import ScheduledSequence, StepOutput
from local_engine.config import BLOCK_SIZE, EngineConfig

if TYPE_CHECKING:
    from local_engine.adapters import Adapter

VOCAB = 260
END = 257
START = 256
EXTRA_END = 258
NAN_TOKEN = 259
"""A prompt that begins with this token makes the model compute NaN."""
CRASH_PROMPT = (START, START, START)
"""A prompt that begins so makes the step raise."""
KILL_PROMPT = (START, START, END)
"""A prompt that begins so kills the core process."""

TEMPLATE = (
    "{% for m in messages %}{% if m['role'] not in ('system', 'user', 'assistant') %}"
    "{{ raise_exception('Roles here are system, user and assistant, not ' + m['role']) }}{% endif %}"
    "{{ m['content'] }}{% endfor %}"
)


def oracle_token(tokens: Sequence[int]) -> int:
    """The token that follows `tokens`: an ordinary byte, never an end token."""
    return hashlib.blake2b(repr(list(tokens)).encode(), digest_size=1).digest()[0]


def oracle_output(prompt: Sequence[int], count: int, window: int | None = None) -> list[int]:
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(oracle_token(tokens[-window:] if window else tokens))
    return tokens[len(prompt) :]


class TinyRunner:
    """Deterministic; with `parrot` it repeats the prompt token by token, ending with END when it is through."""

    vocab_size = VOCAB

    def __init__(
        self,
        num_blocks: int,
        max_model_len: int,
        *,
        parrot: bool = False,
        step_s: float = 0.0,
        window: int | None = None,
        ahead: bool = False,
    ) -> None:
        """`window`: it reads only so many of the last tokens, and the oracle is given no more of them. `ahead`: it launches steps
        before the tokens of the one before are asked for."""
        self.launcher = TinyLauncher(self) if ahead else None
        self.adapters: dict[str, Adapter] = {}
        self.num_blocks = num_blocks
        self.max_model_len = max_model_len
        self.computed_tokens = 0
        self._parrot = parrot
        self._step_s = step_s
        self.window = window
        self._pages: list[list[int | None]] = [[None] * BLOCK_SIZE for _ in range(num_blocks)]

    def load_adapter(self, name: str, folder: str) -> None:
        raise NotImplementedError

    def unload_adapter(self, name: str) -> None:
        raise NotImplementedError

    def execute(self, batch: Sequence[ScheduledSequence]) -> StepOutput:
        if self._step_s:
            time.sleep(self._step_s)
        output = StepOutput(tokens=[])
        for scheduled in batch:
            self._write(scheduled)
        for scheduled in batch:
            token = self._sample(scheduled, output) if scheduled.samples else None
            output.tokens.append([] if token is None else [token])
        return output

    def _write(self, scheduled: ScheduledSequence) -> None:
        first = tuple(scheduled.prompt_token_ids[:3])
        if first == CRASH_PROMPT:
            raise RuntimeError("asked to crash")
        if first == KILL_PROMPT:
            os._exit(9)
        assert scheduled.token_ids, "a share holds at least one token"
        self.computed_tokens += len(scheduled.token_ids)
        for offset, token in enumerate(scheduled.token_ids):
            block, row = divmod(scheduled.start + offset, BLOCK_SIZE)
            self._pages[scheduled.block_table[block]][row] = token

    def _sample(self, scheduled: ScheduledSequence, output: StepOutput) -> int | None:
        length = scheduled.start + len(scheduled.token_ids)
        first = 0 if self.window is None else max(0, length - self.window)
        read = [self._pages[scheduled.block_table[at // BLOCK_SIZE]][at % BLOCK_SIZE] for at in range(first, length)]
        tokens = [token for token in read if token is not None]
        assert len(tokens) == length - first, "a page was read before it was written"
        if tokens[0] == NAN_TOKEN:
            output.nan_sequences.append(scheduled.sequence_id)
            return None
        if self._parrot:
            at = scheduled.output_position
            return tokens[at] if at < len(scheduled.prompt_token_ids) else END
        return oracle_token(tokens)


class TinyLauncher:
    """A device: steps are computed in the order of their launches, and a token is known to the host when it is collected."""

    def __init__(self, runner: TinyRunner) -> None:
        self._runner = runner
        self._last: list[int] = []
        self.fed = 0
        """Rows that went on with a token that the host had not seen."""

    def takes_ahead(self, batch: Sequence[ScheduledSequence]) -> bool:
        return all(len(each.token_ids) == 1 and each.samples for each in batch)

    def launch(self, batch: Sequence[ScheduledSequence], feeds: Sequence[int]) -> TinyFlight:
        resolved = [
            replace(each, token_ids=[self._last[feed]]) if feed >= 0 else each
            for each, feed in zip(batch, feeds, strict=True)
        ]
        output = self._runner.execute(resolved)
        self._last = [tokens[0] if tokens else 0 for tokens in output.tokens]
        self.fed += sum(feed >= 0 for feed in feeds)
        return TinyFlight(output)


@dataclass(frozen=True)
class TinyFlight:
    output: StepOutput

    def collect(self) -> StepOutput:
        return self.output


def write_model_folder(folder: Path, *more: str) -> Path:
    """A tokenizer whose tokens are the 256 bytes and four special ones, and `more`; the ids of bytes are the bytes."""
    alphabet = _byte_alphabet()
    vocabulary = {character: byte for byte, character in enumerate(alphabet)}
    backend = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    names = ("<|start|>", "<|end|>", "<|eot|>", "<|nan|>", *more)
    backend.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in names])
    folder.mkdir(parents=True, exist_ok=True)
    backend.save(str(folder / "tokenizer.json"))
    (folder / "config.json").write_text(json.dumps({"architectures": ["Tiny"]}))
    settings = {"bos_token": "<|start|>", "eos_token": {"content": "<|end|>"}, "chat_template": TEMPLATE}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [END, EXTRA_END]}))
    return folder


def _byte_alphabet() -> list[str]:
    from local_engine.tokenizer import _byte_of_character

    character_of = {byte: character for character, byte in _byte_of_character().items()}
    return [character_of[byte] for byte in range(256)]


def make_runner(config: EngineConfig, progress: Callable[[str], None]) -> TinyRunner:
    progress("loading weights 1/2")
    progress("checking them")
    progress("loading weights 2/2")
    if config.kv_cache_dtype == "fp8":  # what this runner takes as the sign to find a broken model
        from local_engine.errors import ModelError

        raise ModelError("model.safetensors is a git-LFS pointer: run `git lfs pull`")
    return TinyRunner(
        config.num_blocks_override or 64,
        config.max_model_len or 512,
        parrot=config.dtype == "float32",
        step_s=float(os.environ.get("TINY_STEP_S", "0")),
    )


if __name__ == "__main__":
    from local_engine.core_process import main

    sys.exit(main(make_runner))
