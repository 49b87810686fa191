"""What a node of a cluster may complain about in its log, and nothing else.

Apache Kafka alone prints these lines too, when nodes are stopped, killed and started; each pattern says when.
"""

from __future__ import annotations

import re
from typing import Final

from interop.brokers import ApacheKafka, Broker

LEVEL: Final = re.compile(r"(?:^|[ \]])(WARN|ERROR)[ :]")
EXPECTED: Final = re.compile(
    # A start by itself.
    r"Performing controller activation|already been closed"
    # While another node is down, and when it goes.
    r"|could not be established|Node may not be available|Disconnecting from node|Connection to node"
    r"|Error in response for fetch request|java.io.IOException: Connection to"
    # Clients of two brokers want a coordinator, and nobody has made the topic yet.
    r"|creation failed for __\w+ with error 'TOPIC_ALREADY_EXISTS'"
    # A leader has the new epoch a moment before its follower, who then waits for the metadata.
    r"|Partition \S+ marked as failed"
)


def complaints(node: Broker) -> list[str]:
    """The lines of WARN and ERROR that are not expected."""
    lines = [line for line in node.log_text().splitlines() if LEVEL.search(line)]
    if isinstance(node, ApacheKafka):
        return [line for line in lines if not EXPECTED.search(line)]
    return [line for line in lines if "ERROR" in line]
