"""What LiteLLM calls things, and what they are here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

BASES: Final[Mapping[str, tuple[str, str | None]]] = {
    "openai": ("openai", "https://api.openai.com/v1"),
    "text-completion-openai": ("openai", "https://api.openai.com/v1"),
    "anthropic": ("anthropic", "https://api.anthropic.com"),
    "gemini": ("gemini", "https://generativelanguage.googleapis.com"),
    "deepseek": ("openai", "https://api.deepseek.com/v1"),
    "mistral": ("openai", "https://api.mistral.ai/v1"),
    "groq": ("openai", "https://api.groq.com/openai/v1"),
    "xai": ("openai", "https://api.x.ai/v1"),
    "together_ai": ("openai", "https://api.together.xyz/v1"),
    "fireworks_ai": ("openai", "https://api.fireworks.ai/inference/v1"),
    "openrouter": ("openai", "https://openrouter.ai/api/v1"),
    "perplexity": ("openai", "https://api.perplexity.ai"),
    "cerebras": ("openai", "https://api.cerebras.ai/v1"),
    "dashscope": ("openai", "https://dashscope-intl.aliyuncs.com/compatible-mode/v1"),
    "moonshot": ("openai", "https://api.moonshot.ai/v1"),
    "ollama": ("openai", "http://localhost:11434/v1"),
    "ollama_chat": ("openai", "http://localhost:11434/v1"),
    "hosted_vllm": ("openai", None),
    "openai_like": ("openai", None),
    "custom_openai": ("openai", None),
    "lm_studio": ("openai", None),
    "litellm_proxy": ("openai", None),
    "azure": ("openai", None),
}
"""The prefix of a model's name there: our kind of provider, and its address where the prefix knows it."""
STRATEGIES: Final[Mapping[str, str]] = {
    "simple-shuffle": "weighted",
    "least-busy": "least_busy",
    "latency-based-routing": "fastest",
    "cost-based-routing": "cheapest",
}
PERIODS: Final[Mapping[str, str]] = {
    "1d": "day", "24h": "day", "daily": "day", "7d": "week", "1w": "week", "weekly": "week",
    "30d": "month", "1mo": "month", "monthly": "month",
}  # fmt: skip
PRICES: Final[Mapping[str, tuple[str, int]]] = {
    "input_cost_per_token": ("input", 1_000_000),
    "output_cost_per_token": ("output", 1_000_000),
    "cache_read_input_token_cost": ("cache_read", 1_000_000),
    "cache_creation_input_token_cost": ("cache_write_5m", 1_000_000),
}
MOST: Final = 10**9
"""More than a weight, a limit, a time in seconds or a price can be meant to be."""
NAME: Final = r"[A-Za-z0-9][A-Za-z0-9._:/@+-]{0,199}"
"""As the settings' names."""
TAKEN: Final = frozenset(
    {
        "model",
        "api_base",
        "api_version",
        "base_url",
        "api_key",
        "rpm",
        "tpm",
        "weight",
        "order",
        "timeout",
        "max_parallel_requests",
        *PRICES,
    }
)
OWN: Final = {"litellm_settings", "router_settings", "general_settings", "model_list", "environment_variables"}
SETTINGS: Final = {
    "fallbacks", "context_window_fallbacks", "default_fallbacks", "routing_strategy", "model_group_alias", "master_key",
    "default_team_settings", "max_budget", "budget_duration", "database_url",
}  # fmt: skip
