"""The command `kwire` and its subcommands."""

import sys

if sys.version_info < (3, 11):  # noqa: UP036 - pip checks this, but not for a clone on the path
    sys.exit(f"kwire: Python 3.11 or newer is needed, and this is Python {sys.version.split()[0]}")
