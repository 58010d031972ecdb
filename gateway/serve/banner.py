"""What `metergate serve` tells the person who started it. Standard output only: a key never goes through the logger."""

from __future__ import annotations

import os
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

from gateway.settings import Settings


@dataclass(frozen=True, slots=True)
class FirstRun:
    """What the first run made and shows once. None: it existed before, or there is none."""

    admin_key: str | None = None
    team_key: str | None = None


def banner(address: str, settings: Settings, first: FirstRun, *, engines_ready: bool) -> str:
    """The lines to print when requests can be answered."""
    lines = ["", f"Metergate serves on {address}", ""]
    if first.admin_key is not None:
        lines.append(f"  admin key   {first.admin_key}   (also in {settings.home / 'admin-key'}; shown only this once)")
    else:
        where = "METERGATE_ADMIN_KEY" if settings.admin_key is not None else str(settings.home / "admin-key")
        lines.append(f"  admin key   in {where}")
    if first.team_key is not None:
        lines.append(f"  team key    {first.team_key}   (team `default`, settles in USD; shown only this once)")
    else:
        lines.append(f"  team key    {command()} key create TEAM NAME makes one; {command()} team list shows the teams")
    operators = address if settings.admin_listen is None else f"http://{settings.admin_listen}"
    lines.append(f"  dashboard   {operators}/dashboard   (sign in with the admin key)")
    models = ", ".join(model.name for model in settings.models) or "none configured"
    lines.append(f"  models      {models}")
    if not engines_ready:
        lines.append(
            "  note        an engine is not up yet; its lines are above, and its models answer 503 until it is"
        )
    if not address.endswith(":8000"):
        lines.append(
            f"  shell       export METERGATE_URL={address}   (the metergate command looks there; its default is :8000)"
        )
    if settings.models:
        invitation = "Try it:" if first.team_key is not None else "Try it (KEY holds a team key):"
        lines += ["", invitation, "", curl(address, first.team_key or "$KEY", settings.models[0].name)]
    lines.append("")
    return "\n".join(lines)


def command() -> str:
    """The command as this person can type it: with its folder where the shell would not find it."""
    if shutil.which("metergate") is not None:
        return "metergate"
    beside = Path(sys.executable).with_name("metergate")
    return os.path.relpath(beside) if beside.is_relative_to(Path.cwd()) else str(beside)


def curl(address: str, key: str, model: str) -> str:
    """A request to paste into a shell."""
    question = '{"role": "user", "content": "What is the capital of France?"}'
    body = f'{{"model": "{model}", "messages": [{question}], "temperature": 0}}'
    return (
        f"  curl -i {address}/v1/chat/completions -H 'Authorization: Bearer {key}' "
        f"-H 'Content-Type: application/json' -d '{body}'"
    ).replace("Bearer $KEY'", 'Bearer \'"$KEY"')
