"""Metering: the journal that no death of a process empties, and the recorder that turns it into rows, each exactly once."""
