"""Dialects: what a caller writes and a provider reads, translated by way of OpenAI's chat form."""
