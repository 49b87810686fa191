"""What every key does, as DescribeConfigs tells an operator who asks for documentation."""

from __future__ import annotations

from typing import Final

from broker.config.docs_server import SERVER_DOCS

DOCUMENTATION: Final[dict[str, str]] = {
    **SERVER_DOCS,
}
"""A key's text. A topic and a broker share the text of a key that both have."""
