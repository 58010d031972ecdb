"""The caller's surfaces: HTTP in and out, and the one straight line that every request walks."""
