"""Writing a quantised checkpoint, and measuring what the rounding costs."""
