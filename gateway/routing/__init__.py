"""Routing: which routes may serve a request, in which order, and which of them are worth trying now."""
