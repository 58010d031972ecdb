"""The gateway. httpx would load its command line with itself, and with that rich and pygments: 5 MB that nobody here needs."""

import sys

sys.modules.setdefault("httpx._main", None)  # type: ignore[arg-type]  # importing it fails, as where it is not installed

from gateway import compiled  # noqa: E402  # httpx must not be imported before the line above

compiled.activate()
