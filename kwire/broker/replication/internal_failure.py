"""The error of a log that fails although its disk works."""

from __future__ import annotations

from kwire.broker.storage.disk import StorageError


class InternalFailure(StorageError):
    """The failure of a log because of a bug of kwire. The disk has not failed."""
