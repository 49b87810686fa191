"""The warnings and errors that a node may log in the cluster scenarios.

Apache Kafka logs these lines also in clusters without kwire, when nodes are stopped, killed and started.
"""

from __future__ import annotations

import re
from typing import Final

from interop.brokers import ApacheKafka, Broker

NOT_ENOUGH: Final = "NotEnoughReplicas"
"""For the argument `also`: a partition has fewer in-sync replicas than min.insync.replicas."""
OLD_EPOCH: Final = (
    r"Unexpected error handling request.*ASSIGN_REPLICAS_TO_DIRS.*=apache-kafka-java.*\n"
    ".*StaleBrokerEpochException"
    "|assignments failed; global error: Response-level error: STALE_BROKER_EPOCH"
)
"""For the argument `also`: an Apache Kafka broker that was paused or wiped sends its former broker epoch."""
WIPED_VOTER: Final = r"Detected non-monotonic update of fetch offset from nodeId ReplicaKey\(id={}, "
"""For the argument `also`: a voter that lost its directory fetches from a lower offset than before.

This happens if the leader has taken no snapshot since the voter's last fetch.
"""
LEVEL: Final = re.compile(r"(?:^|[ \]])(WARN|ERROR)[ :]")
EXPECTED: Final = re.compile(
    # A node starts.
    r"Performing controller activation|already been closed|Overriding internal.metadata.log.segment.bytes"
    # A controller resumes after a pause, in which it lost its leadership.
    r"|Exceptionally slow controller event|Renouncing the leadership due to a metadata log event"
    # A controller receives a request after it has closed its metrics.
    r"|(Exception when|Unexpected error) handling request.*\n.*NullPointerException: Cannot .*RequestMetrics"
    # A controller receives a request while it starts, or is overloaded.
    r"|ApiVersionsRequestData.*\n.*KafkaRaftManager.client\(\)|UNKNOWN_SERVER_ERROR .* an ApiVersionsRequest"
    r"|controller event queue overloaded"
    # A broker has a setting of controllers, because all nodes share their properties.
    r"|is defined in the broker role. This configuration will be ignored in 5.0"
    r"|is defined in broker. It should be defined in the controller role. This configuration will be ignored"
    # Another node is down or is shutting down.
    r"|could not be established|Node may not be available|Disconnecting from node|Connection to node"
    r"|Error in response for fetch request|java.io.IOException: Connection to"
    r"|AddPartitionsToTxnRequest failed for node \d+ with a network exception"
    r"|Unexpected error BROKER_NOT_AVAILABLE in ADD_RAFT_VOTER response"
    # A follower returns after the leader has deleted the records that it would fetch next.
    r"|because the local replica's end offset is smaller than the current leader's start offset"
    # The leader's log start offset is inside a batch. The follower starts its new log at that batch. The
    # empty segment that the new log replaces has no index files yet.
    r"|Failed atomic move of \S+index to \S+index\.deleted .*\n.*NoSuchFileException"
    # A node was killed while it wrote a batch, and truncates the incomplete batch when it starts.
    r"|Corruption found in segment \d+, truncating to offset"
    # The machine is busy, so the controller handles a heartbeat too late.
    r"|controller event queue overloaded|sent a heartbeat request but received error REQUEST_TIMED_OUT"
    # Retention compares timestamps with the time at which the retention check started, which is earlier.
    r"|contains future timestamp\(s\), making it in"
    # Nodes send requests to a controller that has started but has not become leader yet.
    r"|Unexpected error handling request.*\n.*NotControllerException: "
    # Two brokers create the same internal topic, because clients of both brokers need it.
    r"|creation failed for (__\w+|\S+\.internal) with error 'TOPIC_ALREADY_EXISTS'"
    # The leader of a coordinator's partition changes while the coordinator still loads the partition.
    r"|Stopped loading records from __\w+-\d+ because the partition is not online or is no longer the leader"
    # A coordinator writes for a group after it has lost the group's partition.
    r"|Failed to write empty metadata for group"
    # librdkafka aborts a transaction that the coordinator has not started: see `load.TransactionalWriter`.
    r"|state is (COMPLETE|PREPARE)_COMMIT, but received transaction marker result to send: ABORT"
    # A batch was rejected, for example because there is no coordinator, and later batches of the producer
    # arrive. Or later batches reach a new leader before the batches that the producer sends again.
    r"|Error processing append operation.*\n.*OutOfOrderSequenceException"
    # A paused or stopping coordinator tries to end a transaction that the new coordinator has ended.
    r"|Error processing append operation.*\n.*TransactionCoordinatorFencedException"
    # A follower knows a new topic before the leader of the topic does.
    r"|Received UNKNOWN_TOPIC_ID from the leader"
    # A reassignment adds a replica to a broker.
    r"|Expected partition \S+ with topic id \S+ to exist, but it was missing"
    # A reassignment removed a replica that still fetches. This also happens with Apache Kafka alone.
    r"|The replica state of replica ID:\[\d+\] doesn't exist in the leader node"
    # A new leader's high watermark is lower than that of the previous leader.
    r"|Non-monotonic update of high watermark"
    # A leader has a new leader epoch before its follower, which then waits until it receives the metadata.
    r"|Partition \S+ marked as failed"
    # The scenario upgrades or downgrades features.
    r"|(Up|Down)grading metadata.version from|Unsupported metadata.version downgrade"
)


def unexpected_lines(node: Broker, also: str = "(?!)") -> list[str]:
    """Return the unexpected WARN and ERROR lines, each with the next line, which may name the exception.

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
