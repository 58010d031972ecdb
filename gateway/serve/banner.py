"""What `metergate serve` tells the person who started it. Standard output only: a key never goes through the logger."""

from __future__ import annotations

from dataclasses import dataclass

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
        lines.append("  team key    metergate key create TEAM NAME makes one; metergate team list shows the teams")
    models = ", ".join(model.name for model in settings.models) or "none configured"
    lines.append(f"  models      {models}")
    if not engines_ready:
        lines.append(
            "  note        an engine is not up yet; its lines are above, and its models answer 503 until it is"
        )
    if settings.models:
        lines += ["", "Try it:", "", curl(address, first.team_key or "$KEY", settings.models[0].name)]
    lines.append("")
    return "\n".join(lines)


def curl(address: str, key: str, model: str) -> str:
    """A request to paste into a shell."""
    question = '{"role": "user", "content": "What is the capital of France?"}'
    body = f'{{"model": "{model}", "messages": [{question}], "temperature": 0}}'
    return (
        f"  curl -i {address}/v1/chat/completions -H 'Authorization: Bearer {key}' "
        f"-H 'Content-Type: application/json' -d '{body}'"
    ).replace("Bearer $KEY'", 'Bearer \'"$KEY"')
