"""What a node of a cluster may complain about in its log, and nothing else.

Apache Kafka alone prints these lines too, when nodes are stopped, killed and started; each pattern says when.
"""

from __future__ import annotations

import re
from typing import Final

from interop.brokers import ApacheKafka, Broker

NOT_ENOUGH: Final = "NotEnoughReplicas"
"""Where more nodes are away than a partition can do without, for `also`."""
OLD_EPOCH: Final = (
    r"Unexpected error handling request.*ASSIGN_REPLICAS_TO_DIRS.*=apache-kafka-java.*\n"
    ".*StaleBrokerEpochException"
    "|assignments failed; global error: Response-level error: STALE_BROKER_EPOCH"
)
"""Where a broker of Apache Kafka's that slept, or lost all, asks under the epoch that it had before."""
WIPED_VOTER: Final = r"Detected non-monotonic update of fetch offset from nodeId ReplicaKey\(id={}, "
"""Where this controller has lost its directory, and the leader has taken no snapshot since it last asked."""
LEVEL: Final = re.compile(r"(?:^|[ \]])(WARN|ERROR)[ :]")
EXPECTED: Final = re.compile(
    # A start by itself.
    r"Performing controller activation|already been closed|Overriding internal.metadata.log.segment.bytes"
    # A controller that slept leads no more.
    r"|Exceptionally slow controller event|Renouncing the leadership due to a metadata log event"
    # A controller is asked while it ends, and has no metrics any more.
    r"|Exception when handling request\n.*NullPointerException: Cannot invoke .*RequestMetrics"
    # A controller is asked while it starts, or has more to do than it can.
    r"|ApiVersionsRequestData.*\n.*KafkaRaftManager.client\(\)|UNKNOWN_SERVER_ERROR .* an ApiVersionsRequest"
    r"|controller event queue overloaded"
    # A setting of controllers, in the properties that all nodes have alike.
    r"|is defined in the broker role. This configuration will be ignored in 5.0"
    # While another node is down, and when it goes.
    r"|could not be established|Node may not be available|Disconnecting from node|Connection to node"
    r"|Error in response for fetch request|java.io.IOException: Connection to"
    r"|AddPartitionsToTxnRequest failed for node \d+ with a network exception"
    r"|Unexpected error BROKER_NOT_AVAILABLE in ADD_RAFT_VOTER response"
    # A follower comes back to a topic of which records were deleted meanwhile.
    r"|because the local replica's end offset is smaller than the current leader's start offset"
    # And the leader's log starts within a batch: the follower begins its log again where the batch does, and
    # the segment that it began a moment before, which held nothing, has no index files yet.
    r"|Failed atomic move of \S+index to \S+index\.deleted .*\n.*NoSuchFileException"
    # A node was killed in the middle of a write, and cuts off at its next start what is not whole.
    r"|Corruption found in segment \d+, truncating to offset"
    # A loaded machine: the controller does not come to a heartbeat in time, even its own broker's.
    r"|controller event queue overloaded|sent a heartbeat request but received error REQUEST_TIMED_OUT"
    # And retention compares records with the time at which it began to look.
    r"|contains future timestamp\(s\), making it in"
    # Nodes ask a controller that has just started, and does not lead yet.
    r"|Unexpected error handling request.*\n.*NotControllerException: "
    # Clients of two brokers want a topic of coordinators, or of Connect's own, and nobody has made it yet.
    r"|creation failed for (__\w+|\S+\.internal) with error 'TOPIC_ALREADY_EXISTS'"
    # A leader's partition is given on while the coordinator still reads it.
    r"|Stopped loading records from __\w+-\d+ because the partition is not online or is no longer the leader"
    # A coordinator wants to write of its group, and is none any more.
    r"|Failed to write empty metadata for group"
    # librdkafka aborts what it could not begin while coordinators moved: see `load.TransactionalWriter`.
    r"|state is (COMPLETE|PREPARE)_COMMIT, but received transaction marker result to send: ABORT"
    # A batch is refused, say while its transaction's coordinator is away, and the producer's next ones come;
    # or an idempotent client's later batches reach a new leader before those that it sends again.
    r"|Error processing append operation.*\n.*OutOfOrderSequenceException"
    # A coordinator that slept, or is being stopped, ends a transaction that the next one has ended.
    r"|Error processing append operation.*\n.*TransactionCoordinatorFencedException"
    # A follower knows of a topic before its leader does.
    r"|Received UNKNOWN_TOPIC_ID from the leader"
    # A replica comes to a broker by a reassignment.
    r"|Expected partition \S+ with topic id \S+ to exist, but it was missing"
    # A follower has not heard yet that a reassignment has removed it: Kafka's of one of its own, too.
    r"|The replica state of replica ID:\[\d+\] doesn't exist in the leader node"
    # A new leader knows of less that is committed than the last one did.
    r"|Non-monotonic update of high watermark"
    # A leader has the new epoch a moment before its follower, who then waits for the metadata.
    r"|Partition \S+ marked as failed"
    # Somebody changes the features of the cluster, or wants to.
    r"|(Up|Down)grading metadata.version from|Unsupported metadata.version downgrade"
)


def complaints(node: Broker, also: str = "(?!)") -> list[str]:
    """The lines of WARN and ERROR that are not expected, each with the next, where the exception is.

    `also` is what may be said besides.
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
