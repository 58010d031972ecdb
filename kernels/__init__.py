"""The machine room: one operation per file, each with its formula, its shapes and a plain torch reference."""
