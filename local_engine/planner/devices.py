"""GPUs and the memory they report (the total of `nvidia-smi`, which is less than the number on the box)."""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import ConfigError

MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Device:
    name: str
    memory_bytes: int
    fp8: bool
    """Multiplies fp8 in hardware (compute capability 8.9 and above)."""
    bf16: bool = True


DEVICES = (
    Device("T4", 15_360 * MIB, fp8=False, bf16=False),
    Device("A10G", 23_028 * MIB, fp8=False),
    Device("L4", 23_034 * MIB, fp8=True),
    Device("RTX3090", 24_576 * MIB, fp8=False),
    Device("RTX4090", 24_564 * MIB, fp8=True),
    Device("RTX5090", 32_607 * MIB, fp8=True),
    Device("A100-40GB", 40_960 * MIB, fp8=False),
    Device("L40S", 46_068 * MIB, fp8=True),
    Device("A100-80GB", 81_920 * MIB, fp8=False),
    Device("H100", 81_559 * MIB, fp8=True),
    Device("H20", 97_871 * MIB, fp8=True),
    Device("H200", 143_771 * MIB, fp8=True),
    Device("B200", 183_359 * MIB, fp8=True),
)


def find_device(name: str) -> Device:
    """By name, upper or lower case. Raises `ConfigError` naming what there is."""
    wanted = name.lower().replace("-", "").replace("_", "").replace(" ", "")
    for device in DEVICES:
        if device.name.lower().replace("-", "") == wanted:
            return device
    known = ", ".join(device.name for device in DEVICES)
    raise ConfigError(f"--gpu {name} is not known here; known are {known} (or give --gpu-memory-bytes, such as 80G)")
