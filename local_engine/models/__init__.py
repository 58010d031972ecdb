"""Model families, one per file, found by the architecture that the model's files name."""
