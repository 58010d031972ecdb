"""What `metergate doctor` says of one thing."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Health(StrEnum):
    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class Check:
    """One finding. `remedy` is empty when all is well."""

    name: str
    health: Health
    detail: str
    remedy: str = ""


def ok(name: str, detail: str) -> Check:
    return Check(name, Health.OK, detail)


def warn(name: str, detail: str, remedy: str) -> Check:
    return Check(name, Health.WARN, detail, remedy)


def fail(name: str, detail: str, remedy: str) -> Check:
    return Check(name, Health.FAIL, detail, remedy)
