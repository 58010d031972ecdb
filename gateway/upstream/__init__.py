"""Upstream: one adapter per kind of provider behind one small interface, and the wire that carries it."""
