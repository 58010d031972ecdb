"""The sliding minute, as 61 one-second buckets: the two-bucket window, made fine enough that its error has one sign.

A count stays until its whole second has left the minute: an event at time t is counted until floor(t) + 61 s. So

- never more than the limit in any 60 s, wherever the minute is cut: no burst at a boundary, overshoot 0;
- a place comes back at most 1 s late (1.7 % of the minute): that is the whole error.

GCRA and a window of two buckets both let up to twice the limit through some minutes, and GCRA cannot tell whose tokens a
late correction gives back; a bucket can. A correction goes to the bucket of its admission, or nowhere once that has left.
"""

from __future__ import annotations

SECOND_US = 1_000_000
BUCKETS = 61


class SlidingWindow:
    """Counts of one key's last minute. `bucket` arguments are whole seconds since the epoch; they may stand still.

    A clock that steps back less than a minute counts into the newest bucket; one that steps further starts the window anew.
    """

    __slots__ = ("_counts", "head", "newest", "used")

    def __init__(self) -> None:
        self._counts = [0] * BUCKETS
        self.head = 0
        self.newest = 0
        self.used = 0

    def slide(self, bucket: int) -> int:
        """Drop what has left the minute that ends in `bucket`; what is still used."""
        gap = bucket - self.head
        if gap <= 0:
            if gap > -BUCKETS:
                return self.used
            self._restart(bucket)
        elif gap >= BUCKETS:
            self._restart(bucket)
        else:
            counts = self._counts
            for leaving in range(self.head + 1, bucket + 1):
                position = leaving % BUCKETS
                self.used -= counts[position]
                counts[position] = 0
            self.head = bucket
        return self.used

    def add(self, amount: int, bucket: int) -> None:
        """Count `amount` in `bucket`, unless that has left the minute. Call `slide` first."""
        head = self.head
        if bucket > head:
            bucket = head
        if amount and bucket > head - BUCKETS:
            self._counts[bucket % BUCKETS] += amount
            self.used += amount
            if bucket > self.newest:
                self.newest = bucket

    def correct(self, bucket: int, delta: int) -> None:
        """Add `delta` to what was counted in `bucket`. Once that has left: what is too much counts now, the rest is gone."""
        if bucket > self.head - BUCKETS:
            self._counts[bucket % BUCKETS] += delta
            self.used += delta
        elif delta > 0:
            self.add(delta, self.head)

    def wait_us(self, now_us: int, amount: int, limit: int) -> int | None:
        """How long until `amount` fits, if nobody else comes; None when it never will, being more than the limit."""
        if amount > limit:
            return None
        excess = self.used + amount - limit
        bucket = self.head - BUCKETS
        while excess > 0:
            bucket += 1
            excess -= self._counts[bucket % BUCKETS]
        return max(0, (bucket + BUCKETS) * SECOND_US - now_us)

    def reset_us(self, now_us: int) -> int:
        """How long until the window is empty, if nobody comes."""
        return max(0, (self.newest + BUCKETS) * SECOND_US - now_us) if self.used else 0

    def _restart(self, bucket: int) -> None:
        if self.used:
            self._counts = [0] * BUCKETS
            self.used = 0
        self.head = bucket
