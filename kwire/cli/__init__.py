"""The command `kwire` and its subcommands."""

import sys

if sys.version_info < (3, 11):  # noqa: UP036 - pip checks this, but not for a clone on the path
    sys.exit(f"kwire needs Python 3.11 or newer, and this is Python {sys.version.split()[0]}")
