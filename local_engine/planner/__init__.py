"""The memory plan: what a model needs and what a GPU holds, from config.json alone. Standard library only, no torch."""
