"""What every key does, as DescribeConfigs tells an operator who asks for documentation."""

from __future__ import annotations

from typing import Final

from kwire.broker.config.docs_coordinator import COORDINATOR_DOCS
from kwire.broker.config.docs_group import GROUP_DOCS
from kwire.broker.config.docs_security import SECURITY_DOCS
from kwire.broker.config.docs_server import SERVER_DOCS
from kwire.broker.config.docs_storage import STORAGE_DOCS
from kwire.broker.config.docs_topic import TOPIC_DOCS

DOCUMENTATION: Final[dict[str, str]] = {
    **SERVER_DOCS,
    **STORAGE_DOCS,
    **COORDINATOR_DOCS,
    **SECURITY_DOCS,
    **TOPIC_DOCS,
    **GROUP_DOCS,
}
"""A key's text. A topic and a broker share the text of a key that both have."""
