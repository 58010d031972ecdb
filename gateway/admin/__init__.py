"""The operator's API under /admin/v1."""
