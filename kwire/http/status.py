"""HTTP status codes of pages."""

from __future__ import annotations

from typing import Final

FORBIDDEN: Final = 403
SERVICE_UNAVAILABLE: Final = 503
