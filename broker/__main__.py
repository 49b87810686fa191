"""`python -m broker` is the command `kwire`."""

from __future__ import annotations

import sys

from broker.cli import main

sys.exit(main())
