"""Calls of tools out of a model's text, as it streams: a file for each way in which models write them."""
