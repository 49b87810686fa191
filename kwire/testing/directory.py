"""A directory for a time, which ends with the process that made it.

Not so `tempfile.TemporaryDirectory`: a child that is forked has a copy, and when it exits removes what its
parent works with.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import weakref


class Directory:
    """See the module."""

    def __init__(self) -> None:
        self.name = tempfile.mkdtemp(prefix="kwire-")
        self.remove = weakref.finalize(self, _remove, self.name, os.getpid())
        """Called by itself at the end of the process, or with the last that knows of this."""


def _remove(path: str, owner: int) -> None:
    if os.getpid() == owner:
        shutil.rmtree(path, ignore_errors=True)
