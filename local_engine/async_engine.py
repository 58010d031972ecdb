"""The HTTP process's side of the engine: starts the core, sends it sequences, hands its tokens to whoever waits."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import subprocess
import sys
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import msgspec

from .config import EngineConfig
from .errors import Draining, EngineDead, ModelError, Overloaded, Unresponsive
from .generation import Choice, Delta, Generation, GenerationRequest, Usage
from .heartbeat import BEAT_EVERY_S, CoreWatch
from .messages import (
    HEADER,
    Abort,
    AdapterDone,
    AddSequence,
    Beat,
    Failed,
    FromCore,
    LoadAdapter,
    Progress,
    Ready,
    ResetPrefixCache,
    Start,
    Stats,
    StepDone,
    UnloadAdapter,
    frame,
)
from .metrics import EngineMetrics
from .sampling_params import SamplingParams
from .sequence import FinishReason
from .tokenizer import Tokenizer

log = logging.getLogger(__name__)

CORE_COMMAND = (sys.executable, "-m", "local_engine.core_process")
FINISHED_KEPT_S = 600
FINISHED_KEPT_MAX = 100_000
CORE_EXIT_S = 5


@dataclass(frozen=True, slots=True)
class FinishedUsage:
    """What an ended request used; kept for ten minutes under its request id."""

    status: str
    usage: Usage
    expires_s: float


class AsyncEngine:
    """One core process and the requests in it. All methods belong to one event loop."""

    def __init__(
        self,
        config: EngineConfig,
        tokenizer: Tokenizer,
        metrics: EngineMetrics,
        *,
        max_waiting: int = 1024,
        core_timeout_s: float = 20,
        command: Sequence[str] = CORE_COMMAND,
    ) -> None:
        self.config = config
        self.tokenizer = tokenizer
        self.metrics = metrics
        self.ready: Ready | None = None
        self.dead: str | None = None
        self.draining = False
        self.progress = "starting"
        self.watch = CoreWatch(core_timeout_s)
        self.stats = Stats()
        metrics.follow(lambda: self.stats)
        self._max_waiting = max_waiting
        self._command = tuple(command)
        self._core: subprocess.Popen[bytes] | None = None
        self._watch_fd: int | None = None
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._adapter_answers: deque[asyncio.Future[str | None]] = deque()
        self._next_sequence = 1
        self._by_sequence: dict[int, tuple[Generation, Choice]] = {}
        self._live: dict[str, Generation] = {}
        self._finished: OrderedDict[str, FinishedUsage] = OrderedDict()
        self.on_death: Callable[[str], None] | None = None

    async def start(self, on_progress: Callable[[str], None]) -> Ready:
        """Starts the core and waits until the model is loaded. Raises `ModelError` with the core's words if it is not."""
        self._reader, self._writer = await asyncio.open_connection(sock=self._spawn())
        self._writer.write(frame(Start(self.config)))
        try:
            await self._await_ready(on_progress)
        except (asyncio.IncompleteReadError, ConnectionError):
            raise ModelError(
                f"the engine core ended while loading ({self._exit_words()}); see its lines above"
            ) from None
        assert self.ready is not None
        self._tasks = [
            asyncio.create_task(self._read_steps(), name="engine-core-reader"),
            asyncio.create_task(self._watch_core(), name="engine-core-watch"),
        ]
        return self.ready

    def submit(self, request: GenerationRequest) -> Generation:
        """Sends the sequences to the core. Raises `Draining`, `Overloaded`, `Unresponsive` or `EngineDead`."""
        self._check_open(len(request.prompts) * request.n)
        generation = Generation(request, [])
        frames: list[bytes] = []
        sent: list[Choice] = []
        for prompt, params in zip(request.prompts, request.params, strict=True):
            leader: int | None = None
            for choice_index in range(request.n):
                choice = self._new_choice(generation, params)
                if params.max_tokens == 0 and params.pooling is None:
                    self._end_without_output(generation, choice)
                    continue
                # The prompt is the same for all choices: the first one tells about it, the others share its pages.
                asked = params if choice_index == 0 else replace(params, prompt_logprobs=None)
                add = AddSequence(
                    choice.sequence_id,
                    prompt,
                    asked,
                    choice_index,
                    request.salt,
                    request.priority,
                    leader,
                    request.adapter,
                )
                frames.append(frame(add))
                sent.append(choice)
                leader = leader or choice.sequence_id
        # Nothing is on record until every frame is made: a request that cannot be sent leaves nothing behind.
        self._live[request.request_id] = generation
        self._by_sequence.update({choice.sequence_id: (generation, choice) for choice in sent})
        self._write(b"".join(frames))
        if not sent:
            self._finish(generation)
        return generation

    def _new_choice(self, generation: Generation, params: SamplingParams) -> Choice:
        choice = Choice(len(generation.choices), self._next_sequence, params, self.tokenizer)
        self._next_sequence += 1
        generation.choices.append(choice)
        return choice

    def _end_without_output(self, generation: Generation, choice: Choice) -> None:
        """`max_tokens` 0: only the prompt is wanted (echo), and no step."""
        choice.ended = True
        generation.push(Delta(choice.index, "", (), FinishReason.LENGTH))

    def abort(self, generation: Generation) -> None:
        """Asks the core to drop what is left of the request; `generation.ended` tells when its pages are free."""
        generation.aborted = True
        for choice in generation.choices:
            if not choice.ended and choice.stopped_by is None:
                self._send(Abort(choice.sequence_id, None))

    def find(self, request_id: str) -> Generation | None:
        return self._live.get(request_id)

    def finished(self, request_id: str) -> FinishedUsage | None:
        self._expire_finished()
        return self._finished.get(request_id)

    def reset_prefix_cache(self) -> None:
        self._send(ResetPrefixCache())

    async def change_adapters(self, message: LoadAdapter | UnloadAdapter) -> str | None:
        """None when it is done, or why not. Raises `EngineDead`."""
        self._check_open(0)
        answer: asyncio.Future[str | None] = asyncio.get_running_loop().create_future()
        self._adapter_answers.append(answer)
        self._send(message)
        return await answer

    @property
    def live_count(self) -> int:
        return len(self._live)

    async def drain(self, timeout_s: float) -> None:
        """Refuses new requests and waits for the running ones; what is left after `timeout_s` is aborted."""
        self.draining = True
        waiting = [generation.ended.wait() for generation in self._live.values()]
        if not waiting:
            return
        try:
            await asyncio.wait_for(asyncio.gather(*waiting), timeout_s)
        except TimeoutError:
            left = list(self._live.values())
            log.warning("aborting %d requests that did not end within %g s", len(left), timeout_s)
            self.abort_all()
            await asyncio.wait(
                {asyncio.ensure_future(generation.ended.wait()) for generation in left}, timeout=CORE_EXIT_S
            )

    def abort_all(self) -> None:
        for generation in list(self._live.values()):
            self.abort(generation)

    async def stop(self) -> None:
        """Ends the core and waits for it. Requests still running end with an error."""
        for task in self._tasks:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
        self._fail_all("The engine was stopped.")
        if self._writer is not None:
            self._writer.close()
        if self._watch_fd is not None:
            os.close(self._watch_fd)
            self._watch_fd = None
        if self._core is not None:
            await asyncio.to_thread(self._reap)

    def _spawn(self) -> socket.socket:
        """Starts the core; returns our end of the socketpair."""
        ours, theirs = socket.socketpair()
        read_fd, self._watch_fd = os.pipe()
        with theirs:
            self._core = subprocess.Popen(
                [*self._command, "--channel", str(theirs.fileno()), "--parent-fd", str(read_fd)],
                pass_fds=(theirs.fileno(), read_fd),
                stdin=subprocess.DEVNULL,
            )
        os.close(read_fd)
        return ours

    def _reap(self) -> None:
        assert self._core is not None
        try:
            self._core.wait(CORE_EXIT_S)
        except subprocess.TimeoutExpired:
            self._core.kill()
            self._core.wait()

    async def _await_ready(self, on_progress: Callable[[str], None]) -> None:
        while self.ready is None:
            message = await self._receive()
            if isinstance(message, Progress):
                self.progress = message.text
                on_progress(message.text)
            elif isinstance(message, Failed):
                raise ModelError(message.message)
            elif isinstance(message, Ready):
                self.ready = message

    async def _receive(self) -> FromCore:
        assert self._reader is not None
        (length,) = HEADER.unpack(await self._reader.readexactly(HEADER.size))
        return _decoder.decode(await self._reader.readexactly(length))

    async def _read_steps(self) -> None:
        try:
            while True:
                message = await self._receive()
                if isinstance(message, Beat):
                    self.watch.heard(message.step_ms)
                    continue
                if isinstance(message, AdapterDone):
                    answer = self._adapter_answers.popleft()
                    if not answer.done():  # whoever asked may have gone
                        answer.set_result(message.error)
                    continue
                if isinstance(message, Failed):
                    self._die(f"{message.message}.")
                    return
                assert isinstance(message, StepDone)
                self.watch.heard()
                self._apply(message)
        except (asyncio.IncompleteReadError, ConnectionError):
            if self.dead is None:
                self._die(f"The engine core died ({self._exit_words()}).")

    async def _watch_core(self) -> None:
        """Gives a core up that has stopped answering, so that nobody waits for it for ever."""
        assert self._core is not None
        while True:
            await asyncio.sleep(BEAT_EVERY_S)
            if self.dead is not None:
                return
            self.watch.tick()
            if self.watch.lost is not None:
                self._die(self.watch.lost)
                self._core.kill()

    def _die(self, reason: str) -> None:
        self.dead = reason
        log.error("%s", reason)
        self._fail_all(reason)
        if self.on_death is not None:
            self.on_death(reason)

    def _apply(self, step: StepDone) -> None:
        self.stats = step.stats
        now_s = time.monotonic()
        for update in step.updates:
            generation, choice = self._by_sequence[update.id]
            delta = choice.apply(update)
            if delta.tokens:
                self.metrics.observe_token(generation, choice, now_s)
            if choice.ended:
                del self._by_sequence[update.id]
            elif choice.stopped_by is not None and delta.tokens:
                self._send(Abort(choice.sequence_id, choice.tokens))
            generation.push(delta)
            if choice.ended and all(other.ended for other in generation.choices):
                self._finish(generation)

    def _finish(self, generation: Generation, error: str | None = None) -> None:
        request_id = generation.request.request_id
        if self._live.get(request_id) is generation:
            del self._live[request_id]
        status = "failed" if error is not None else "cancelled" if generation.aborted else "completed"
        expires_s = time.monotonic() + FINISHED_KEPT_S
        self._finished[request_id] = FinishedUsage(status, generation.usage, expires_s)
        self._finished.move_to_end(request_id)
        self._expire_finished()
        self.metrics.observe_end(generation, status)
        generation.end(error)

    def _fail_all(self, message: str) -> None:
        while self._adapter_answers:
            answer = self._adapter_answers.popleft()
            if not answer.done():
                answer.set_exception(EngineDead(message))
        generations = {id(generation): generation for generation, _ in self._by_sequence.values()}
        self._by_sequence.clear()
        for generation in generations.values():
            self._finish(generation, message)

    def _expire_finished(self) -> None:
        now_s = time.monotonic()
        while self._finished:
            oldest = next(iter(self._finished.values()))
            if oldest.expires_s > now_s and len(self._finished) <= FINISHED_KEPT_MAX:
                break
            self._finished.popitem(last=False)

    def _check_open(self, sequences: int) -> None:
        if self.dead is not None:
            raise EngineDead(self.dead)
        if self.draining:
            raise Draining("The engine is shutting down and takes no new requests.")
        if self.ready is None:
            raise Overloaded(f"The model is still loading ({self.progress}).", retry_after_s=2)
        if self.watch.trouble is not None:
            raise Unresponsive(self.watch.trouble)
        beyond_seats = len(self._by_sequence) - self.config.max_num_seqs
        waiting = max(self.stats.waiting, beyond_seats)
        if waiting > 0 and waiting + sequences > self._max_waiting:
            raise Overloaded(f"{waiting} sequences are waiting already (--max-waiting {self._max_waiting}). Try later.")

    def _send(self, message: msgspec.Struct) -> None:
        self._write(frame(message))

    def _write(self, data: bytes) -> None:
        if self._writer is not None and self.dead is None:
            self._writer.write(data)

    def _exit_words(self) -> str:
        assert self._core is not None
        try:
            status = self._core.wait(1)
        except subprocess.TimeoutExpired:
            return "its socket closed"
        return exit_words(status)


def exit_words(status: int) -> str:
    """How the core ended, and what that mostly means."""
    if status == -signal.SIGKILL:
        return (
            "signal 9: most likely the system's out-of-memory killer; give the machine or container more memory, or lower "
            "--kv-cache-memory-bytes"
        )
    return f"signal {-status}" if status < 0 else f"exit status {status}"


_decoder: msgspec.msgpack.Decoder[FromCore] = msgspec.msgpack.Decoder(FromCore)
