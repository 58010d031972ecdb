"""The web page for operators, at /dashboard."""
