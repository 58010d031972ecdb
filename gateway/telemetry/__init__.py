"""Traces and GenAI metrics over OTLP, made of the rows that were recorded: none of it is on a request's way."""
