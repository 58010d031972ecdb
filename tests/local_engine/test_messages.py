from __future__ import annotations

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from local_engine.config import EngineConfig
from local_engine.messages import (
    HEADER,
    Abort,
    AddSequence,
    FrameBuffer,
    FromCore,
    LoadAdapter,
    ResetPrefixCache,
    Start,
    Stats,
    StepDone,
    ToCore,
    UnloadAdapter,
    Update,
    frame,
)
from local_engine.sampling_params import SamplingParams
from local_engine.sequence import FinishReason
from local_engine.token_logprobs import TokenLogprobs

LOGPROBS = TokenLogprobs([42, 1], [-0.5, -1.25], 1)
TO_CORE: list[ToCore] = [
    Start(EngineConfig("m")),
    AddSequence(7, [1, 2], SamplingParams(stop=("a",), logit_bias={3: -1.5}, seed=(1 << 64) - 1), 1, b"salt", -2, 6),
    Abort(7, 3),
    ResetPrefixCache(),
    LoadAdapter("tone", "/adapters/tone"),
    UnloadAdapter("tone"),
]


@given(st.lists(st.integers(1, 50), max_size=40))
def test_frames_survive_any_split(cuts: list[int]) -> None:
    data = b"".join(frame(message) for message in TO_CORE)
    buffer = FrameBuffer(bytearray())
    bodies: list[bytes] = []
    for cut in [*cuts, len(data)]:
        bodies += buffer.feed(data[:cut])
        data = data[cut:]
    decoder = msgspec.msgpack.Decoder(ToCore)
    assert [decoder.decode(body) for body in bodies] == TO_CORE


def test_a_step_survives_the_way_back() -> None:
    step = StepDone(
        [Update(7, [4, 42], 1_000, 16, FinishReason.STOP, 42, None, [LOGPROBS], [LOGPROBS])],
        Stats(running=1, busy_us=5),
    )
    assert msgspec.msgpack.decode(frame(step)[HEADER.size :], type=FromCore) == step
