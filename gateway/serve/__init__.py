"""`metergate serve`: from settings to a running product: preflight, bundled engines, first-run keys, server, graceful end."""
