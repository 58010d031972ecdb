"""The engine's own OpenAI-compatible HTTP surface."""
