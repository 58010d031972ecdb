"""What the ranks do together within a step: sums and gathered logits, by torch.distributed (NCCL on CUDA, gloo on the CPU).

Every rank makes the same calls in the same order. One that does not is waited for `timeout_s`, then the call raises; who it was
says `entered`, which the crew compares (crew.py).
"""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed import TCPStore  # type: ignore[attr-defined]  # it is theirs to export, and documented
from torch.distributed.distributed_c10d import PrefixStore, Store

from .shard import Shard

HOST = "127.0.0.1"
JOINING = timedelta(minutes=5)
LOADING = timedelta(days=1)
"""Loading takes as long as it takes; a rank that dies over it is seen by the crew."""


class Group:
    """One for a process. `store` is the key-value store of all ranks, `device` this rank's own."""

    def __init__(self, shard: Shard, device: torch.device, store: Store, timeout_s: float) -> None:
        self.shard = shard
        self.entered = 0
        """Calls begun."""
        self._store, self._agreed = store, 0
        if device.type == "cpu":
            _stay_on_this_machine()
        dist.init_process_group(
            "nccl" if device.type == "cuda" else "gloo",
            store=PrefixStore("group", store),
            rank=shard.rank,
            world_size=shard.ranks,
            timeout=timedelta(seconds=timeout_s),
            device_id=device if device.type == "cuda" else None,
        )

    def sum(self, x: torch.Tensor) -> None:
        """x becomes the sum of every rank's, to the same bits on all of them."""
        self.entered += 1
        if x.is_contiguous():
            dist.all_reduce(x)
            return
        whole = x.contiguous()
        dist.all_reduce(whole)
        x.copy_(whole)

    def gather(self, part: torch.Tensor, widths: Sequence[int]) -> torch.Tensor:
        """Rank 0: every rank's columns side by side, `widths[r]` of them from rank r. The others: `part`."""
        self.entered += 1
        sent = part.new_zeros(part.shape[0], max(widths))
        sent[:, : part.shape[1]] = part
        if self.shard.rank:
            dist.gather(sent, dst=0)
            return part
        received = [torch.empty_like(sent) for _ in widths]
        dist.gather(sent, received, dst=0)
        return torch.cat([rows[:, :width] for rows, width in zip(received, widths, strict=True)], dim=1)

    def least(self, value: int) -> int:
        """The smallest of what the ranks bring, once all of them have."""
        self._agreed += 1
        keys = [f"least {self._agreed} {rank}" for rank in range(self.shard.ranks)]
        self._store.set(keys[self.shard.rank], str(value))
        self._store.wait(keys, LOADING)
        return min(int(self._store.get(key)) for key in keys)

    def close(self) -> None:
        dist.destroy_process_group()


def open_store(ranks: int) -> tuple[Store, int]:
    """Rank 0's store, where only this machine reaches it, and its port."""
    listener = socket.create_server((HOST, 0))
    port: int = listener.getsockname()[1]
    store: Store = TCPStore(
        HOST, port, ranks, is_master=True, timeout=JOINING, wait_for_workers=False, master_listen_fd=listener.detach()
    )
    return store, port


def join_store(port: int) -> Store:
    store: Store = TCPStore(HOST, port, timeout=JOINING, wait_for_workers=False)
    return store


def _stay_on_this_machine() -> None:
    """gloo would ask what address the host's name stands for, which in a container may be none."""
    loopback = [name for _, name in socket.if_nameindex() if name in ("lo", "lo0")]
    if loopback:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", loopback[0])
