"""The warnings and errors that a node may log in the cluster scenarios.

Apache Kafka logs these lines without kwire, too, when nodes are stopped, killed and started.
"""

from __future__ import annotations

import re
from typing import Final

from interop.brokers import ApacheKafka, Broker

NOT_ENOUGH: Final = "NotEnoughReplicas"
"""For `also`: fewer replicas are in sync than min.insync.replicas."""
OLD_EPOCH: Final = (
    r"Unexpected error handling request.*ASSIGN_REPLICAS_TO_DIRS.*=apache-kafka-java.*\n"
    ".*StaleBrokerEpochException"
    "|assignments failed; global error: Response-level error: STALE_BROKER_EPOCH"
)
"""For `also`: an Apache Kafka broker that was paused or wiped uses its former broker epoch."""
WIPED_VOTER: Final = r"Detected non-monotonic update of fetch offset from nodeId ReplicaKey\(id={}, "
"""For `also`: a voter lost its directory, and the leader has taken no snapshot since its last fetch."""
LEVEL: Final = re.compile(r"(?:^|[ \]])(WARN|ERROR)[ :]")
EXPECTED: Final = re.compile(
    # Every start.
    r"Performing controller activation|already been closed|Overriding internal.metadata.log.segment.bytes"
    # A controller was paused and lost its leadership.
    r"|Exceptionally slow controller event|Renouncing the leadership due to a metadata log event"
    # A controller gets a request after it has closed its metrics.
    r"|Exception when handling request\n.*NullPointerException: Cannot invoke .*RequestMetrics"
    # A controller gets a request during its start, or is overloaded.
    r"|ApiVersionsRequestData.*\n.*KafkaRaftManager.client\(\)|UNKNOWN_SERVER_ERROR .* an ApiVersionsRequest"
    r"|controller event queue overloaded"
    # A controller setting in the properties that all nodes share.
    r"|is defined in the broker role. This configuration will be ignored in 5.0"
    # Another node is down or shuts down.
    r"|could not be established|Node may not be available|Disconnecting from node|Connection to node"
    r"|Error in response for fetch request|java.io.IOException: Connection to"
    r"|AddPartitionsToTxnRequest failed for node \d+ with a network exception"
    r"|Unexpected error BROKER_NOT_AVAILABLE in ADD_RAFT_VOTER response"
    # A follower returns after records were deleted.
    r"|because the local replica's end offset is smaller than the current leader's start offset"
    # The leader's log start is within a batch. The follower starts its log at that batch, and its previous,
    # empty segment has no index files yet.
    r"|Failed atomic move of \S+index to \S+index\.deleted .*\n.*NoSuchFileException"
    # A node was killed during a write and truncates the incomplete batch at its next start.
    r"|Corruption found in segment \d+, truncating to offset"
    # The machine is busy, and the controller handles a heartbeat too late.
    r"|controller event queue overloaded|sent a heartbeat request but received error REQUEST_TIMED_OUT"
    # Retention compares timestamps with the time at which its check started.
    r"|contains future timestamp\(s\), making it in"
    # Nodes send requests to a controller that has started and is not the leader yet.
    r"|Unexpected error handling request.*\n.*NotControllerException: "
    # Clients of two brokers cause the creation of an internal topic at the same time.
    r"|creation failed for (__\w+|\S+\.internal) with error 'TOPIC_ALREADY_EXISTS'"
    # A coordinator's partition gets another leader while the coordinator still loads it.
    r"|Stopped loading records from __\w+-\d+ because the partition is not online or is no longer the leader"
    # A coordinator writes for its group after it has lost the partition.
    r"|Failed to write empty metadata for group"
    # librdkafka aborts a transaction that it could not begin: see `load.TransactionalWriter`.
    r"|state is (COMPLETE|PREPARE)_COMMIT, but received transaction marker result to send: ABORT"
    # A batch was rejected, for example without a coordinator, and the next batches of the producer arrive.
    # Or later batches reach a new leader before the resent ones.
    r"|Error processing append operation.*\n.*OutOfOrderSequenceException"
    # A paused or stopping coordinator ends a transaction that its successor has ended.
    r"|Error processing append operation.*\n.*TransactionCoordinatorFencedException"
    # A follower learns of a topic before its leader.
    r"|Received UNKNOWN_TOPIC_ID from the leader"
    # A reassignment adds a replica to a broker.
    r"|Expected partition \S+ with topic id \S+ to exist, but it was missing"
    # A reassignment has removed a replica that still fetches, also with Apache Kafka alone.
    r"|The replica state of replica ID:\[\d+\] doesn't exist in the leader node"
    # A new leader's high watermark is lower than that of the previous leader.
    r"|Non-monotonic update of high watermark"
    # A leader has a new epoch before its follower, which then waits for the metadata.
    r"|Partition \S+ marked as failed"
    # The scenario upgrades or downgrades features.
    r"|(Up|Down)grading metadata.version from|Unsupported metadata.version downgrade"
)


def unexpected_lines(node: Broker, also: str = "(?!)") -> list[str]:
    """Return the unexpected WARN and ERROR lines, each with the next line, which has the exception.

    `also` is a pattern of further expected lines. For kwire, only ERROR lines are unexpected.
    """
    lines = node.log_text().splitlines()
    found = [
        f"{line}\n{following}"
        for line, following in zip(lines, [*lines[1:], ""], strict=True)
        if LEVEL.search(line)
    ]
    found = [text for text in found if not re.search(also, text)]
    if isinstance(node, ApacheKafka):
        return [text for text in found if not EXPECTED.search(text)]
    return [text for text in found if "ERROR" in text.partition("\n")[0]]
