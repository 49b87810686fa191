"""Entry point of `python -m kwire`, which runs the command `kwire`."""

from __future__ import annotations

import sys

from kwire.cli.main import main

sys.exit(main())
