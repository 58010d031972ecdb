"""Weights out of files: which tensors a model has, how they are stored, and what is wrong with a broken file."""
