"""Whether what a provider says it used can be so.

What cannot be (a negative count, no output beside an answer) is replaced by an estimate, never below what was delivered. What
is only hard to believe stays, for it is what the provider charges. Either way the usage is flagged.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from msgspec.structs import replace

from billing.usage import Usage

SLACK_TOKENS: Final = 1024
"""Some providers count reasoning beside the cap and inside the output without saying so."""
SLACK_FACTOR: Final = 2


def judged(
    usage: Usage, *, input_tokens: int, most_output: int | None, delivered_tokens: Callable[[], int]
) -> tuple[Usage, bool]:
    """The usage to bill, and whether a part of it is estimated.

    `input_tokens` is the prompt's estimate; `most_output` the cap that was sent, all choices together; `delivered_tokens` is
    asked only where no output was counted.
    """
    estimated = False
    if usage.flaw is not None and usage.total_input == 0 and input_tokens:
        usage, estimated = replace(usage, input=input_tokens), True
    if usage.total_output == 0:
        delivered = delivered_tokens()
        if delivered:
            flaw = usage.flaw or "no output tokens are counted beside an answer"
            return replace(usage, output=delivered, flaw=flaw), True
    elif most_output is not None and usage.flaw is None:
        visible = usage.total_output - usage.reasoning
        if visible > most_output * SLACK_FACTOR + SLACK_TOKENS:
            flaw = f"output tokens are {usage.total_output}, more than the cap of {most_output}"
            usage = replace(usage, flaw=flaw)
    return usage, estimated
