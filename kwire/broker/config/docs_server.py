"""What the keys of a node, its listeners, its quorum, replication, quotas and metrics do."""

from __future__ import annotations

from typing import Final

SERVER_DOCS: Final = {
    "broker.id": (
        "The older name of node.id, kept so that old property files load; -1 means it is not set. When it is "
        "set it has to equal node.id."
    ),
    "num.io.threads": (
        "How many threads work on requests once they have been read from the network, disk access included."
    ),
    "num.replica.alter.log.dirs.threads": (
        "How many threads copy replicas from one log directory of this broker to another. Unset means one "
        "for each log directory."
    ),
    "background.threads": (
        "How many threads share the broker's housekeeping, such as flushing, retention and checkpoints."
    ),
    "request.timeout.ms": (
        "Milliseconds this node, when it is itself the client, waits for an answer before it retries the "
        "request or gives it up."
    ),
    "socket.connection.setup.timeout.ms": (
        "Milliseconds an outgoing connection gets to be established. Each failure in a row roughly doubles "
        "it, up to socket.connection.setup.timeout.max.ms."
    ),
    "socket.connection.setup.timeout.max.ms": (
        "The ceiling, in milliseconds, for the growing time that attempts to open one outgoing connection "
        "get."
    ),
    "config.providers": (
        "Short names of the providers that fill in placeholders in other settings; "
        "config.providers.NAME.class says what each one is. Empty means placeholders are not resolved."
    ),
    "early.start.listeners": (
        "Listeners allowed to take connections before the authorizer is ready. Unset means the controller's "
        "listeners; a listener the authorizer itself needs belongs here."
    ),
    "broker.rack": (
        "The rack, zone or site this broker stands in, used to spread replicas and to let consumers read "
        "nearby. Unset means the location is unknown."
    ),
    "controlled.shutdown.enable": (
        "Whether a broker that is stopping first has its partitions led by others, so that clients see less "
        "of an interruption."
    ),
    "max.incremental.fetch.session.cache.slots": (
        "How many incremental fetch sessions the broker remembers at a time; 0 makes every fetch a full one."
    ),
    "fetch.max.bytes": (
        "The most bytes the broker puts into one fetch response, whatever the client asked for. A first "
        "batch larger than this is still returned, so that readers never get stuck."
    ),
    "max.request.partition.size.limit": (
        "The most partitions one DescribeTopicPartitions response lists; a client pages through the rest."
    ),
    "unstable.api.versions.enable": (
        "Whether the node offers request versions whose wire format may still change. Meant for development, "
        "not for data that has to last."
    ),
    "unstable.feature.versions.enable": (
        "Whether feature levels that are not final yet may be used. A cluster that has used one may be "
        "impossible to upgrade."
    ),
    "process.roles": "What this node is: broker, controller, or both separated by a comma.",
    "node.id": "The number, 0 or more, that identifies this node; no two nodes of a cluster may share it.",
    "initial.broker.registration.timeout.ms": (
        "Milliseconds a starting broker gets to register with the controller before it exits."
    ),
    "broker.heartbeat.interval.ms": (
        "Milliseconds between the heartbeats a broker sends to the active controller."
    ),
    "broker.session.timeout.ms": (
        "Milliseconds without a heartbeat after which the controller fences a broker and moves its "
        "leaderships away."
    ),
    "controller.listener.names": (
        "The listeners controllers talk on, separated by commas. Brokers connect through the first, and a "
        "broker must not advertise any of them."
    ),
    "controller.performance.sample.period.ms": (
        "Milliseconds between summaries of how fast the controller's events were, written to the log."
    ),
    "controller.performance.always.log.threshold.ms": (
        "Milliseconds from which a single controller event counts as slow and gets a log line of its own; 0 "
        "reports all of them."
    ),
    "server.max.startup.time.ms": (
        "Milliseconds the node may take to start before it gives up. The largest number means as long as it "
        "takes."
    ),
    "metadata.log.max.record.bytes.between.snapshots": (
        "Bytes of metadata records after the latest snapshot that cause the next one to be taken."
    ),
    "metadata.log.max.snapshot.interval.ms": (
        "Milliseconds after which a snapshot of the metadata is taken if anything changed since the last; 0 "
        "means that only size decides."
    ),
    "metadata.log.dir": "The directory of the metadata log. Unset means the first of log.dirs.",
    "metadata.log.segment.bytes": (
        "The size in bytes at which the metadata log closes a segment and starts another."
    ),
    "metadata.log.segment.ms": (
        "The age in milliseconds at which the metadata log closes a segment even if it is not full."
    ),
    "metadata.max.retention.bytes": (
        "Bytes the metadata log and its snapshots may take together before the oldest are removed; a "
        "negative number means no limit. What no snapshot covers is never removed."
    ),
    "metadata.max.retention.ms": (
        "Milliseconds old metadata snapshots and segments are kept before they are removed; a negative "
        "number means age removes nothing. What no snapshot covers stays."
    ),
    "metadata.max.idle.interval.ms": (
        "Milliseconds of quiet after which the active controller appends an empty record, so that replicas "
        "see the log advance; 0 turns this off."
    ),
    "internal.metadata.log.segment.bytes": (
        "Replaces metadata.log.segment.bytes without its lower bound, for tests that need tiny segments. "
        "Unset means it is not used."
    ),
    "internal.metadata.max.batch.size.in.bytes": (
        "The largest batch, in bytes, that the metadata log accepts."
    ),
    "internal.metadata.delete.delay.millis": (
        "Milliseconds between taking a metadata file out of use and removing it from disk."
    ),
    "listeners": (
        "The sockets this node opens, as NAME://host:port separated by commas. An empty host means the "
        "default interface, 0.0.0.0 all of them, and port 0 any free port."
    ),
    "advertised.listeners": (
        "The addresses clients and brokers are told to connect to, as NAME://host:port. Unset means those of "
        "listeners; 0.0.0.0 cannot be advertised."
    ),
    "listener.security.protocol.map": (
        "The security protocol of each listener, as NAME:PROTOCOL pairs separated by commas."
    ),
    "socket.send.buffer.bytes": (
        "The send buffer, in bytes, of the sockets clients connect to; -1 leaves it to the operating system."
    ),
    "socket.receive.buffer.bytes": (
        "The receive buffer, in bytes, of the sockets clients connect to; -1 leaves it to the operating "
        "system."
    ),
    "socket.request.max.bytes": (
        "The largest request, in bytes, a client may send; the connection of one that exceeds it is closed."
    ),
    "socket.listen.backlog.size": (
        "How many connections may wait to be accepted on a listening socket. The operating system may cap it "
        "lower."
    ),
    "max.connections.per.ip": (
        "How many connections one address may hold at a time. With 0, only addresses in "
        "max.connections.per.ip.overrides get in."
    ),
    "max.connections.per.ip.overrides": (
        "Connection limits for single hosts or addresses, as HOST:COUNT pairs separated by commas; these go "
        "before max.connections.per.ip. Empty means no exceptions."
    ),
    "max.connections": (
        "How many connections the broker holds at a time. With a listener's prefix it limits that listener; "
        "brokers are let in regardless, at the cost of an idle client's connection."
    ),
    "max.connection.creation.rate": (
        "New connections a second the broker accepts; above this it delays accepting them. With a listener's "
        "prefix it limits that listener."
    ),
    "connections.max.idle.ms": (
        "Milliseconds a connection may stay silent before the broker closes it; a negative number means idle "
        "connections stay open."
    ),
    "connection.failed.authentication.delay.ms": (
        "Milliseconds by which closing a connection that failed to authenticate is put off, to slow down "
        "guessing. Has to be below connections.max.idle.ms."
    ),
    "queued.max.requests": (
        "How many requests may wait for an I/O thread before the network threads stop reading more."
    ),
    "queued.max.request.bytes": (
        "Bytes of waiting requests above which nothing more is read from the network; -1 means no limit."
    ),
    "num.network.threads": (
        "How many threads each listener has to read requests from, and write responses to, its sockets."
    ),
    "controller.socket.timeout.ms": (
        "Milliseconds a broker waits for the controller to answer one of its requests."
    ),
    "default.replication.factor": (
        "How many replicas the partitions of topics get that were created automatically or with no "
        "replication factor given."
    ),
    "replica.lag.time.max.ms": (
        "Milliseconds a follower may go without reaching the end of its leader's log before it drops out of "
        "the in-sync replicas."
    ),
    "replica.socket.timeout.ms": (
        "Milliseconds a follower waits for its leader to answer. Should be no less than "
        "replica.fetch.wait.max.ms."
    ),
    "replica.socket.receive.buffer.bytes": (
        "The receive buffer, in bytes, of the sockets a follower fetches through; -1 leaves it to the "
        "operating system."
    ),
    "replica.fetch.max.bytes": (
        "Bytes a follower asks for from each partition in one fetch. A first batch larger than this still "
        "arrives whole."
    ),
    "replica.fetch.wait.max.ms": (
        "Milliseconds a leader may hold a follower's fetch while there is too little to send. Keep it below "
        "replica.lag.time.max.ms."
    ),
    "replica.fetch.backoff.ms": "Milliseconds a follower leaves a partition alone after fetching it failed.",
    "replica.fetch.min.bytes": (
        "Bytes a leader should have for a follower before it answers a fetch; until then it waits up to "
        "replica.fetch.wait.max.ms."
    ),
    "replica.fetch.response.max.bytes": (
        "Bytes a follower asks for in one fetch over all partitions. A first batch larger than this still "
        "arrives whole."
    ),
    "num.replica.fetchers": (
        "How many threads fetch from each broker this one follows. More of them copy faster, at the price of "
        "memory and processor time."
    ),
    "replica.high.watermark.checkpoint.interval.ms": (
        "Milliseconds between the times the high watermarks of all partitions are written to disk."
    ),
    "fetch.purgatory.purge.interval.requests": (
        "How many finished fetches may pile up among the waiting ones before they are cleared out."
    ),
    "producer.purgatory.purge.interval.requests": (
        "How many finished produce requests may pile up among the waiting ones before they are cleared out."
    ),
    "delete.records.purgatory.purge.interval.requests": (
        "How many finished DeleteRecords requests may pile up among the waiting ones before they are cleared "
        "out."
    ),
    "auto.leader.rebalance.enable": (
        "Whether the controller regularly gives partitions back to the replica that is preferred as their "
        "leader."
    ),
    "leader.imbalance.check.interval.seconds": (
        "Seconds between the controller's looks for partitions that are not led by their preferred replica."
    ),
    "inter.broker.listener.name": (
        "The listener brokers use among themselves. Unset means the one that security.inter.broker.protocol "
        "implies; the two cannot be set together."
    ),
    "replica.selector.class": (
        "The class that decides which replica a consumer should read from. Unset means the leader."
    ),
    "controller.quorum.voters": (
        "The fixed set of controllers, as ID@host:port separated by commas. Empty means the voters are kept "
        "in the metadata log and found through controller.quorum.bootstrap.servers."
    ),
    "controller.quorum.bootstrap.servers": (
        "Addresses, as host:port separated by commas, at which the controller quorum can be found when its "
        "members are not fixed. Empty means controller.quorum.voters is used."
    ),
    "controller.quorum.election.timeout.ms": (
        "Milliseconds a voter waits for an election to be decided before it tries again; a random amount is "
        "added so that voters do not collide."
    ),
    "controller.quorum.fetch.timeout.ms": (
        "Milliseconds without a successful fetch after which a voter stands for election. A leader that a "
        "majority has not fetched from for this long steps down."
    ),
    "controller.quorum.election.backoff.max.ms": (
        "The most milliseconds a candidate that lost pauses before its next election."
    ),
    "controller.quorum.append.linger.ms": (
        "Milliseconds the quorum's leader collects records before it writes them to disk; 0 writes at once."
    ),
    "controller.quorum.request.timeout.ms": (
        "Milliseconds a quorum member waits for another to answer before it retries or gives up."
    ),
    "controller.quorum.retry.backoff.ms": (
        "Milliseconds a quorum member pauses before it repeats a request that failed."
    ),
    "controller.quorum.auto.join.enable": (
        "Whether a controller that is not a voter asks to become one as soon as it has caught up. Needs a "
        "quorum whose members are not fixed."
    ),
    "controller.quorum.fetch.snapshot.max.bytes": (
        "The most bytes of a metadata snapshot asked for in one request."
    ),
    "controller.quorum.fetch.max.bytes": "The most bytes of the metadata log asked for in one fetch.",
    "metrics.num.samples": "How many time windows a metric is computed over.",
    "metrics.sample.window.ms": "The length of each of a metric's windows, in milliseconds.",
    "metric.reporters": (
        "The classes that are told about metrics as they come and go, separated by commas. Empty means none."
    ),
    "metrics.recording.level": "How much detail the metrics record: INFO, DEBUG or TRACE.",
    "kafka.metrics.reporters": (
        "Classes that report the broker's older, Yammer kind of metrics, separated by commas. Empty means "
        "none."
    ),
    "kafka.metrics.polling.interval.secs": (
        "Seconds between two rounds of the classes named by kafka.metrics.reporters."
    ),
    "telemetry.max.bytes": "The largest metrics payload, in bytes, that a client may push to the broker.",
    "quota.window.num": "How many time windows the rates behind client quotas are computed over.",
    "replication.quota.window.num": "How many time windows the throttled replication rate is computed over.",
    "alter.log.dirs.replication.quota.window.num": (
        "How many time windows the throttled rate of copies between log directories is computed over."
    ),
    "controller.quota.window.num": (
        "How many time windows the rate of topic and partition changes is computed over."
    ),
    "quota.window.size.seconds": (
        "The length, in seconds, of each window that client quotas are computed over."
    ),
    "replication.quota.window.size.seconds": (
        "The length, in seconds, of each window the throttled replication rate is computed over."
    ),
    "alter.log.dirs.replication.quota.window.size.seconds": (
        "The length, in seconds, of each window the throttled rate of copies between log directories is "
        "computed over."
    ),
    "controller.quota.window.size.seconds": (
        "The length, in seconds, of each window the rate of topic and partition changes is computed over."
    ),
    "client.quota.callback.class": (
        "The class that decides which quota a request counts against. Unset means the quotas stored in the "
        "cluster apply."
    ),
    "connections.max.reauth.ms": (
        "Milliseconds a SASL session lasts at most before the client has to authenticate again or is cut "
        "off; 0 means sessions are not limited. Can be set for one listener or mechanism by prefix."
    ),
}
