"""The gateway. Two things come before anything is imported: what is left out, and the compiled path."""

from gateway import unneeded

unneeded.leave_out()

from gateway import compiled  # noqa: E402  # libraries must not be imported before the line above

compiled.activate()
