"""`python -m local_engine`."""

import sys

from .cli import main

sys.exit(main())
