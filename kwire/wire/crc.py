"""CRC-32C, the checksum of record batches and producer snapshots.

The package crc32c imports `importlib.metadata` to read its own version. That import takes 8 ms of the 130 ms
of a broker's start, so this module loads only the package's extension module.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from importlib.machinery import PathFinder
from typing import Final, cast


def _function() -> Callable[..., int]:
    package = importlib.util.find_spec("crc32c")
    found = package and PathFinder.find_spec("crc32c._crc32c", package.submodule_search_locations)
    if not found or found.loader is None:  # a version of the package with another layout
        from crc32c import crc32c as function

        return function
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return cast("Callable[..., int]", module.crc32c)


crc32c: Final = _function()
"""`crc32c(data, value=0)`: the checksum of `data`, continued from the checksum `value` of preceding data."""
