"""The HTTP process's side of the engine: sends sequences to its cores, hands their tokens to whoever waits."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import msgspec

from .config import EngineConfig
from .core_choice import CoreChoice
from .core_link import CORE_COMMAND, CORE_EXIT_S, CoreLink
from .errors import Draining, EngineDead, Overloaded, RequestError, Unresponsive
from .generation import Choice, Delta, Generation, GenerationRequest, Usage
from .messages import Abort, AddSequence, LoadAdapter, Ready, ResetPrefixCache, Stats, StepDone, UnloadAdapter, frame
from .metrics import EngineMetrics
from .remembered import Remembered
from .sampling_params import SamplingParams
from .sequence import FinishReason
from .tokenizer import Tokenizer

log = logging.getLogger(__name__)

FINISHED_KEPT_S = 600
FINISHED_KEPT_MAX = 100_000
EARLY_ABORT_KEPT_S = 5
EARLY_ABORT_KEPT_MAX = 10_000
MAX_FRAMES_BYTES = 128 << 20
"""Of one request to the cores."""


@dataclass(frozen=True, slots=True)
class FinishedUsage:
    """What an ended request used; kept for ten minutes under its request id."""

    status: str
    usage: Usage


class AsyncEngine:
    """`config.data_parallel_size` cores and the requests in them; without one of them there is no engine. All methods belong to
    one event loop."""

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
        metrics.follow(lambda: self.stats)
        self._max_waiting = max_waiting
        self._cores = [
            CoreLink(replace(config, data_parallel_rank=rank), command, core_timeout_s, self._apply, self._die)
            for rank in range(config.data_parallel_size)
        ]
        self._choice = CoreChoice()
        self._next_sequence = 1
        self._by_sequence: dict[int, tuple[Generation, Choice, CoreLink]] = {}
        self._live: dict[str, Generation] = {}
        self._finished: Remembered[FinishedUsage] = Remembered(FINISHED_KEPT_S, FINISHED_KEPT_MAX)
        self._early_aborts: Remembered[bool] = Remembered(EARLY_ABORT_KEPT_S, EARLY_ABORT_KEPT_MAX)
        self.on_death: Callable[[str], None] | None = None

    async def start(self, on_progress: Callable[[str], None]) -> Ready:
        """Starts the cores and waits until all have loaded the model. Raises `ModelError` with a core's words if one has not."""

        def show(text: str) -> None:
            self.progress = text
            on_progress(text)

        first, *others = self._cores
        loading = [first.start(show), *(core.start(lambda _: None) for core in others)]
        found = await asyncio.gather(*loading)
        self.ready = msgspec.structs.replace(
            found[0],
            num_blocks=sum(each.num_blocks for each in found),
            max_model_len=min(each.max_model_len for each in found),
            load_us=max(each.load_us for each in found),
        )
        return self.ready

    @property
    def stats(self) -> Stats:
        """Of all cores together."""
        return Stats(
            *(sum(each) for each in zip(*(msgspec.structs.astuple(core.stats) for core in self._cores), strict=True))
        )

    @property
    def trouble(self) -> str | None:
        """Why new requests should go elsewhere; None when all is well."""
        return next((core.watch.trouble for core in self._cores if core.watch.trouble is not None), None)

    def submit(self, request: GenerationRequest) -> Generation:
        """Sends the sequences, those of a prompt to one core. Raises `Draining`, `Overloaded`, `Unresponsive`, `EngineDead`, and
        `RequestError` for more than MAX_FRAMES_BYTES."""
        self._check_open(len(request.prompts) * request.n)
        generation = Generation(request, [], aborted=bool(self._early_aborts.take(request.request_id)))
        sent: list[tuple[CoreLink, Choice, bytes]] = []
        loads = [core.live for core in self._cores]
        size = 0
        for prompt, params in zip(request.prompts, request.params, strict=True):
            place = self._choice.choose(prompt, request.salt, request.adapter, loads)
            loads[place] += request.n
            leader: int | None = None
            for choice_index in range(request.n):
                choice = self._new_choice(generation, params)
                if generation.aborted or (params.max_tokens == 0 and params.pooling is None):
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
                data = frame(add)
                size += len(data)
                if size > MAX_FRAMES_BYTES:
                    raise RequestError(
                        f"The request's sequences take more than {MAX_FRAMES_BYTES >> 20} MiB together, since each brings its "
                        "prompt, grammar and stop strings along: ask for fewer at once.",
                        param="n",
                    )
                sent.append((self._cores[place], choice, data))
                leader = leader or choice.sequence_id
        # Nothing is on record until every frame is made: a request that cannot be sent leaves nothing behind.
        self._live[request.request_id] = generation
        for core, choice, data in sent:
            self._by_sequence[choice.sequence_id] = (generation, choice, core)
            core.live += 1
            core.write(data)
        if not sent:
            self._finish(generation)
        return generation

    def _new_choice(self, generation: Generation, params: SamplingParams) -> Choice:
        choice = Choice(len(generation.choices), self._next_sequence, params, self.tokenizer)
        self._next_sequence += 1
        generation.choices.append(choice)
        return choice

    def _end_without_output(self, generation: Generation, choice: Choice) -> None:
        """No step is wanted: it was aborted before it came, or has `max_tokens` 0 (only the prompt is asked for, by echo)."""
        choice.ended = True
        reason = FinishReason.ABORT if generation.aborted else FinishReason.LENGTH
        generation.push(Delta(choice.index, "", (), reason))

    def abort(self, generation: Generation) -> None:
        """Asks the core to drop what is left of the request; `generation.ended` tells when its pages are free."""
        generation.aborted = True
        for choice in generation.choices:
            if not choice.ended and choice.stopped_by is None and choice.sequence_id in self._by_sequence:
                _, _, core = self._by_sequence[choice.sequence_id]
                core.send(Abort(choice.sequence_id, None))

    def abort_on_arrival(self, request_id: str) -> None:
        """Of a request that is not here yet: should it come within EARLY_ABORT_KEPT_S, it ends without a step."""
        self._early_aborts.put(request_id, True)

    def find(self, request_id: str) -> Generation | None:
        return self._live.get(request_id)

    def finished(self, request_id: str) -> FinishedUsage | None:
        return self._finished.get(request_id)

    def reset_prefix_cache(self) -> None:
        for core in self._cores:
            core.send(ResetPrefixCache())

    async def change_adapters(
        self, message: LoadAdapter | UnloadAdapter, undo: LoadAdapter | UnloadAdapter
    ) -> str | None:
        """None when every core has done it, or why one has not; then the others `undo` it. Raises `EngineDead`."""
        self._check_open(0)
        errors = await asyncio.gather(*(core.change_adapters(message) for core in self._cores))
        error = next((each for each in errors if each is not None), None)
        if error is not None:
            changed = [core for core, each in zip(self._cores, errors, strict=True) if each is None]
            await asyncio.gather(*(core.change_adapters(undo) for core in changed))
        return error

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
        """Ends the cores and waits for them. Requests still running end with an error."""
        self.dead = self.dead or "The engine was stopped."
        self._fail_all(self.dead)
        await asyncio.gather(*(core.stop() for core in self._cores))

    def _die(self, reason: str) -> None:
        if self.dead is not None:
            return
        self.dead = reason
        log.error("%s", reason)
        self._fail_all(reason)
        if self.on_death is not None:
            self.on_death(reason)

    def _apply(self, step: StepDone) -> None:
        if self.dead is not None:
            return  # nobody waits any more, though a core may still speak
        now_s = time.monotonic()
        for update in step.updates:
            generation, choice, core = self._by_sequence[update.id]
            delta = choice.apply(update)
            if delta.tokens:
                self.metrics.observe_token(generation, choice, now_s)
            if choice.ended:
                del self._by_sequence[update.id]
                core.live -= 1
            elif choice.stopped_by is not None and delta.tokens:
                core.send(Abort(choice.sequence_id, choice.tokens))
            generation.push(delta)
            if choice.ended and all(other.ended for other in generation.choices):
                self._finish(generation)

    def _finish(self, generation: Generation, error: str | None = None) -> None:
        request_id = generation.request.request_id
        if self._live.get(request_id) is generation:
            del self._live[request_id]
        status = "failed" if error is not None else "cancelled" if generation.aborted else "completed"
        self._finished.put(request_id, FinishedUsage(status, generation.usage))
        self.metrics.observe_end(generation, status)
        generation.end(error)

    def _fail_all(self, message: str) -> None:
        for core in self._cores:
            core.fail_answers(message)
        generations = {id(generation): generation for generation, _, _ in self._by_sequence.values()}
        self._by_sequence.clear()
        for generation in generations.values():
            self._finish(generation, message)

    def _check_open(self, sequences: int) -> None:
        if self.dead is not None:
            raise EngineDead(self.dead)
        if self.draining:
            raise Draining("The engine is shutting down and takes no new requests.")
        if self.ready is None:
            raise Overloaded(f"The model is still loading ({self.progress}).", retry_after_s=2)
        if self.trouble is not None:
            raise Unresponsive(self.trouble)
        beyond_seats = len(self._by_sequence) - self.config.max_num_seqs * len(self._cores)
        waiting = max(self.stats.waiting, beyond_seats)
        if waiting > 0 and waiting + sequences > self._max_waiting:
            raise Overloaded(f"{waiting} sequences are waiting already (--max-waiting {self._max_waiting}). Try later.")
