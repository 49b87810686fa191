"""CRC-32C, as batches and producer snapshots carry it: one function of the package crc32c.

The package reads its own version as it is imported, with `importlib.metadata`, and so takes 8 of the 130 ms
in which a broker starts. Its extension module alone has all that is needed.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from importlib.machinery import PathFinder
from typing import Final, cast


def _function() -> Callable[..., int]:
    package = importlib.util.find_spec("crc32c")
    found = package and PathFinder.find_spec("crc32c._crc32c", package.submodule_search_locations)
    if not found or found.loader is None:  # another version of the package, made differently
        from crc32c import crc32c as function

        return function
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return cast("Callable[..., int]", module.crc32c)


crc32c: Final = _function()
"""`crc32c(data, value=0)`: the checksum of `data`, continued from that of what came before."""
