"""Keys of the node, its listeners, the quorum, replication, quotas and metrics.

Names, types, defaults and ranges are those of Apache Kafka 4.3.1.
"""

from __future__ import annotations

from typing import Final

from kwire.broker.config.definition import (
    BOOLEAN,
    CLASS,
    CLUSTER_WIDE,
    INT,
    LIST,
    LONG,
    PER_BROKER,
    REQUIRED,
    STRING,
    Key,
    ListValidator,
    at_least,
)

# fmt: off
SERVER_KEYS: Final = (
    Key("broker.id", INT, "-1",
        doc="The old name of node.id, kept for existing property files. -1 means that it is not set. If it "
            "is set, it must equal node.id."),
    Key("num.io.threads", INT, "8", at_least(1), update_mode=CLUSTER_WIDE,
        doc="The number of threads that process requests, including their disk I/O."),
    Key("num.replica.alter.log.dirs.threads", INT, None,
        doc="The number of threads that move replicas between log directories of this broker. Unset means "
            "one thread per log directory."),
    Key("background.threads", INT, "10", at_least(1), update_mode=CLUSTER_WIDE,
        doc="The number of threads for background tasks such as flushing, retention and checkpoints."),
    Key("request.timeout.ms", INT, "30000",
        doc="The time, in milliseconds, that this node waits for the response to a request that it sent as "
            "a client. The node then retries the request or fails it."),
    Key("socket.connection.setup.timeout.ms", LONG, "10000",
        doc="The time, in milliseconds, that this node waits for an outgoing connection to be established. "
            "The time roughly doubles with each consecutive failure, up to "
            "socket.connection.setup.timeout.max.ms."),
    Key("socket.connection.setup.timeout.max.ms", LONG, "30000",
        doc="The upper limit, in milliseconds, to which the connection setup timeout of outgoing "
            "connections grows."),
    Key("config.providers", LIST, "", update_mode=CLUSTER_WIDE,
        doc="The names of the providers that resolve placeholders in other values, separated by commas. The "
            "class of each provider is set in config.providers.NAME.class. If the list is empty, "
            "placeholders are not resolved."),
    Key("early.start.listeners", LIST, None,
        doc="The listeners that accept connections before the authorizer has started, separated by commas. "
            "Unset means the controller listeners. Add a listener if the authorizer depends on it."),
    Key("broker.rack", STRING, None,
        doc="The rack, zone or site of this broker. It is used to spread replicas, and to let consumers "
            "fetch from a nearby replica. Unset means that the rack is unknown."),
    Key("controlled.shutdown.enable", BOOLEAN, "true",
        doc="Whether a broker moves the leadership of its partitions to other brokers before it shuts down. "
            "Clients then see a shorter interruption."),
    Key("max.incremental.fetch.session.cache.slots", INT, "1000", at_least(0),
        doc="The maximum number of incremental fetch sessions that the broker caches. With 0, every fetch "
            "is a full fetch."),
    Key("fetch.max.bytes", INT, "57671680", at_least(1024),
        doc="The maximum number of bytes that the broker returns in one fetch response, whatever the client "
            "requested. A first batch larger than this is still returned, so that the client makes "
            "progress."),
    Key("max.request.partition.size.limit", INT, "2000", at_least(1),
        doc="The maximum number of partitions in one DescribeTopicPartitions response. Clients request the "
            "rest in further pages."),
    Key("unstable.api.versions.enable", BOOLEAN, "false", internal=True,
        doc="Whether this node supports API versions that may still change. Use it for development only."),
    Key("unstable.feature.versions.enable", BOOLEAN, "false", internal=True,
        doc="Whether this node supports feature levels that are not final. A cluster that has used such a "
            "level may be impossible to upgrade."),
    Key("process.roles", LIST, REQUIRED, ListValidator("broker", "controller"),
        doc="The roles of this node: broker, controller, or both, separated by a comma."),
    Key("node.id", INT, REQUIRED, at_least(0),
        doc="The id of this node, a number from 0. It must be unique in the cluster."),
    Key("initial.broker.registration.timeout.ms", INT, "60000",
        doc="The time, in milliseconds, that a starting broker tries to register with the controller before "
            "it exits."),
    Key("broker.heartbeat.interval.ms", INT, "2000",
        doc="The time, in milliseconds, between two heartbeats of a broker to the active controller."),
    Key("broker.session.timeout.ms", INT, "9000",
        doc="The time, in milliseconds, without a heartbeat after which the controller fences a broker and "
            "moves the leadership of its partitions."),
    Key("controller.listener.names", LIST, REQUIRED,
        doc="The names of the controller listeners, separated by commas. Brokers connect to the first one. "
            "A broker must not advertise any of them."),
    Key("controller.performance.sample.period.ms", LONG, "60000", at_least(100), internal=True,
        doc="The time, in milliseconds, between two log lines that summarize the controller's event "
            "processing."),
    Key("controller.performance.always.log.threshold.ms", LONG, "2000", at_least(0), internal=True,
        doc="The duration, in milliseconds, from which a single controller event is logged as slow. With 0, "
            "every event is logged."),
    Key("server.max.startup.time.ms", LONG, "9223372036854775807", at_least(0), internal=True,
        doc="The maximum time, in milliseconds, that a start may take before the node exits. The default "
            "means no limit."),
    Key("metadata.log.max.record.bytes.between.snapshots", LONG, "20971520", at_least(1),
        doc="The size, in bytes, of the metadata records since the latest snapshot that triggers the next "
            "snapshot."),
    Key("metadata.log.max.snapshot.interval.ms", LONG, "3600000", at_least(0),
        doc="The maximum time, in milliseconds, between two metadata snapshots while the metadata changes. "
            "With 0, only the size of the log triggers snapshots."),
    Key("metadata.log.dir", STRING, None,
        doc="The directory of the metadata log. Unset means the first directory of log.dirs."),
    Key("metadata.log.segment.bytes", INT, "1073741824", at_least(8_388_608),
        doc="The maximum size, in bytes, of a segment of the metadata log."),
    Key("metadata.log.segment.ms", LONG, "604800000",
        doc="The time, in milliseconds, after which the metadata log rolls a new segment even if the "
            "current one is not full."),
    Key("metadata.max.retention.bytes", LONG, "104857600",
        doc="The maximum size, in bytes, of the metadata log and its snapshots before old segments and "
            "snapshots are deleted. A negative value means no limit. Records that no snapshot contains are "
            "never deleted."),
    Key("metadata.max.retention.ms", LONG, "604800000",
        doc="The time, in milliseconds, that old segments and snapshots of the metadata log are retained. A "
            "negative value means no limit. Records that no snapshot contains are never deleted."),
    Key("metadata.max.idle.interval.ms", INT, "500", at_least(0),
        doc="The time, in milliseconds, without new metadata records after which the active controller "
            "appends a no-op record. With 0, no such records are appended."),
    Key("internal.metadata.log.segment.bytes", INT, None, internal=True,
        doc="Overrides metadata.log.segment.bytes without its lower bound, in bytes. For tests that need "
            "small segments. Unset means no override."),
    Key("internal.metadata.max.batch.size.in.bytes", INT, "8388608", internal=True,
        doc="The maximum size, in bytes, of a batch in the metadata log."),
    Key("internal.metadata.delete.delay.millis", LONG, "60000", internal=True,
        doc="The time, in milliseconds, between the removal of a metadata segment or snapshot and the "
            "deletion of its file."),
    Key("listeners", LIST, "PLAINTEXT://:9092", ListValidator(can_be_empty=False), update_mode=PER_BROKER,
        doc="The addresses on which this node accepts connections, as NAME://host:port, separated by "
            "commas. An empty host means the default interface, 0.0.0.0 means all interfaces, and port 0 "
            "means any free port."),
    Key("advertised.listeners", LIST, None,
        doc="The addresses that clients and other brokers connect to, as NAME://host:port, separated by "
            "commas. Unset means the addresses in listeners. 0.0.0.0 cannot be advertised."),
    Key("listener.security.protocol.map", STRING,
        "SASL_SSL:SASL_SSL,PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_PLAINTEXT:SASL_PLAINTEXT", update_mode=PER_BROKER,
        doc="The security protocol of each listener, as NAME:PROTOCOL pairs, separated by commas."),
    Key("socket.send.buffer.bytes", INT, "102400",
        doc="The size, in bytes, of the send buffer of client connections. -1 means the default of the "
            "operating system."),
    Key("socket.receive.buffer.bytes", INT, "102400",
        doc="The size, in bytes, of the receive buffer of client connections. -1 means the default of the "
            "operating system."),
    Key("socket.request.max.bytes", INT, "104857600", at_least(1),
        doc="The maximum size, in bytes, of a request. The broker closes the connection of a client that "
            "exceeds it."),
    Key("socket.listen.backlog.size", INT, "50", at_least(1),
        doc="The maximum number of pending connections of a listener. The operating system may lower it."),
    Key("max.connections.per.ip", INT, "2147483647", at_least(0), update_mode=CLUSTER_WIDE,
        doc="The maximum number of connections from one IP address. With 0, only addresses in "
            "max.connections.per.ip.overrides can connect."),
    Key("max.connections.per.ip.overrides", STRING, "", update_mode=CLUSTER_WIDE,
        doc="Connection limits for individual hosts or addresses, as HOST:COUNT pairs, separated by commas. "
            "They override max.connections.per.ip."),
    Key("max.connections", INT, "2147483647", at_least(0), update_mode=CLUSTER_WIDE,
        doc="The maximum number of connections to the broker. With a listener prefix, the limit applies to "
            "that listener. On the inter-broker listener, the broker accepts further connections and closes "
            "the most idle connection of another listener instead."),
    Key("max.connection.creation.rate", INT, "2147483647", at_least(0), update_mode=CLUSTER_WIDE,
        doc="The maximum number of new connections per second. The broker delays connections above this "
            "rate. With a listener prefix, the limit applies to that listener."),
    Key("connections.max.idle.ms", LONG, "600000",
        doc="The time, in milliseconds, without traffic after which the broker closes a connection. A "
            "negative value means no limit."),
    Key("connection.failed.authentication.delay.ms", INT, "100", at_least(0),
        doc="The time, in milliseconds, by which the broker delays the response to a failed authentication, "
            "to slow down password guessing. It must be less than connections.max.idle.ms."),
    Key("queued.max.requests", INT, "500", at_least(1),
        doc="The maximum number of requests that wait for an I/O thread. Above this number, network threads "
            "read no further requests."),
    Key("queued.max.request.bytes", LONG, "-1",
        doc="The maximum size, in bytes, of the requests that wait for an I/O thread. Above this size, no "
            "further requests are read. -1 means no limit."),
    Key("num.network.threads", INT, "3", at_least(1), update_mode=CLUSTER_WIDE,
        doc="The number of threads per listener that receive requests and send responses."),
    Key("controller.socket.timeout.ms", INT, "30000",
        doc="The time, in milliseconds, that a broker waits for a response from the controller."),
    Key("default.replication.factor", INT, "1",
        doc="The replication factor of topics that are created automatically, or without a replication "
            "factor."),
    Key("replica.lag.time.max.ms", LONG, "30000",
        doc="The maximum time, in milliseconds, since a follower last reached its leader's log end offset. "
            "The leader then removes the follower from the ISR."),
    Key("replica.socket.timeout.ms", INT, "30000",
        doc="The time, in milliseconds, that a follower waits for a response from its leader. It should not "
            "be less than replica.fetch.wait.max.ms."),
    Key("replica.socket.receive.buffer.bytes", INT, "65536",
        doc="The size, in bytes, of the receive buffer of the connections that followers fetch through. -1 "
            "means the default of the operating system."),
    Key("replica.fetch.max.bytes", INT, "1048576", at_least(0),
        doc="The maximum number of bytes that a follower fetches from one partition in one request. A first "
            "batch larger than this is still returned."),
    Key("replica.fetch.wait.max.ms", INT, "500",
        doc="The maximum time, in milliseconds, that a leader waits for enough data before it responds to a "
            "follower's fetch. It should be less than replica.lag.time.max.ms."),
    Key("replica.fetch.backoff.ms", INT, "1000", at_least(0),
        doc="The time, in milliseconds, that a follower waits before it fetches a partition again after an "
            "error."),
    Key("replica.fetch.min.bytes", INT, "1",
        doc="The number of bytes that a leader waits for before it responds to a follower's fetch, at most "
            "for replica.fetch.wait.max.ms."),
    Key("replica.fetch.response.max.bytes", INT, "10485760", at_least(0),
        doc="The maximum number of bytes that a follower fetches in one request over all partitions. A "
            "first batch larger than this is still returned."),
    Key("num.replica.fetchers", INT, "1", at_least(1), update_mode=CLUSTER_WIDE,
        doc="The number of threads that fetch from each leader broker. More threads replicate faster, but "
            "use more memory and CPU time."),
    Key("replica.high.watermark.checkpoint.interval.ms", LONG, "5000",
        doc="The time, in milliseconds, between two checkpoints of the partitions' high watermarks on disk."),
    Key("fetch.purgatory.purge.interval.requests", INT, "1000",
        doc="The number of completed requests in the purgatory of delayed fetches that triggers their "
            "removal."),
    Key("producer.purgatory.purge.interval.requests", INT, "1000",
        doc="The number of completed requests in the purgatory of delayed produce requests that triggers "
            "their removal."),
    Key("delete.records.purgatory.purge.interval.requests", INT, "1",
        doc="The number of completed requests in the purgatory of delayed DeleteRecords requests that "
            "triggers their removal."),
    Key("auto.leader.rebalance.enable", BOOLEAN, "true",
        doc="Whether the controller regularly moves the leadership of partitions back to their preferred "
            "leaders."),
    Key("leader.imbalance.check.interval.seconds", LONG, "300", at_least(1),
        doc="The time, in seconds, between two checks for partitions whose leader is not the preferred "
            "leader."),
    Key("inter.broker.listener.name", STRING, None,
        doc="The listener for connections between brokers. Unset means the listener that "
            "security.inter.broker.protocol names. The two keys cannot be set together."),
    Key("replica.selector.class", STRING, None,
        doc="The class that selects the replica that a consumer fetches from. Unset means that consumers "
            "fetch from the leader."),
    Key("controller.quorum.voters", LIST, "",
        doc="The static set of controllers, as ID@host:port, separated by commas. Empty means that the "
            "metadata log contains the voters, and that nodes find them with "
            "controller.quorum.bootstrap.servers."),
    Key("controller.quorum.bootstrap.servers", LIST, "",
        doc="The addresses, as host:port, separated by commas, at which a node finds the controller quorum "
            "if the set of controllers is dynamic. Empty means that controller.quorum.voters is used."),
    Key("controller.quorum.election.timeout.ms", INT, "1000", at_least(0),
        doc="The time, in milliseconds, that a candidate waits for votes before it starts another election. "
            "A random time is added, so that candidates do not collide."),
    Key("controller.quorum.fetch.timeout.ms", INT, "2000", at_least(0),
        doc="The time, in milliseconds, without a successful fetch after which a voter becomes a candidate. "
            "A leader resigns if it receives no fetch from a majority for this time."),
    Key("controller.quorum.election.backoff.max.ms", INT, "1000", at_least(0),
        doc="The maximum time, in milliseconds, that a candidate waits after a lost election before the "
            "next one."),
    Key("controller.quorum.append.linger.ms", INT, "25", at_least(0),
        doc="The time, in milliseconds, that the quorum leader collects records before it writes them to "
            "disk. With 0, records are written immediately."),
    Key("controller.quorum.request.timeout.ms", INT, "2000", at_least(0),
        doc="The time, in milliseconds, that a quorum member waits for the response of another member "
            "before it retries or fails the request."),
    Key("controller.quorum.retry.backoff.ms", INT, "20", at_least(0),
        doc="The time, in milliseconds, that a quorum member waits before it retries a failed request."),
    Key("controller.quorum.auto.join.enable", BOOLEAN, "false",
        doc="Whether a controller that is not a voter adds itself to the voters once it has caught up. It "
            "requires a dynamic quorum."),
    Key("controller.quorum.fetch.snapshot.max.bytes", INT, "1048576", at_least(1),
        doc="The maximum number of bytes of a metadata snapshot that are fetched in one request."),
    Key("controller.quorum.fetch.max.bytes", INT, "1048576", at_least(1),
        doc="The maximum number of bytes of the metadata log that are fetched in one request."),
    Key("metrics.num.samples", INT, "2", at_least(1),
        doc="The number of samples from which a metric is computed."),
    Key("metrics.sample.window.ms", LONG, "30000", at_least(1),
        doc="The duration, in milliseconds, of each sample of a metric."),
    Key("metric.reporters", LIST, "org.apache.kafka.common.metrics.JmxReporter", update_mode=CLUSTER_WIDE,
        doc="The classes that report metrics, separated by commas. Empty means no reporters."),
    Key("metrics.recording.level", STRING, "INFO",
        doc="The level of detail of the recorded metrics: INFO, DEBUG or TRACE."),
    Key("kafka.metrics.reporters", LIST, "",
        doc="The classes that report Yammer metrics, separated by commas. Empty means no reporters."),
    Key("kafka.metrics.polling.interval.secs", INT, "10", at_least(1),
        doc="The time, in seconds, between two reports of the classes in kafka.metrics.reporters."),
    Key("telemetry.max.bytes", INT, "1048576", at_least(1),
        doc="The maximum size, in bytes, of the metrics that a client pushes in one request."),
    Key("quota.window.num", INT, "11", at_least(1),
        doc="The number of samples from which the rates of client quotas are computed."),
    Key("replication.quota.window.num", INT, "11", at_least(1),
        doc="The number of samples from which the rate of throttled replication is computed."),
    Key("alter.log.dirs.replication.quota.window.num", INT, "11", at_least(1),
        doc="The number of samples from which the rate of throttled moves between log directories is "
            "computed."),
    Key("controller.quota.window.num", INT, "11", at_least(1),
        doc="The number of samples from which the rate of topic and partition changes is computed."),
    Key("quota.window.size.seconds", INT, "1", at_least(1),
        doc="The duration, in seconds, of each sample of a client quota's rate."),
    Key("replication.quota.window.size.seconds", INT, "1", at_least(1),
        doc="The duration, in seconds, of each sample of the rate of throttled replication."),
    Key("alter.log.dirs.replication.quota.window.size.seconds", INT, "1", at_least(1),
        doc="The duration, in seconds, of each sample of the rate of throttled moves between log "
            "directories."),
    Key("controller.quota.window.size.seconds", INT, "1", at_least(1),
        doc="The duration, in seconds, of each sample of the rate of topic and partition changes."),
    Key("client.quota.callback.class", CLASS, None,
        doc="The class that selects the quota of a request. Unset means that the quotas in the cluster "
            "metadata apply."),
    Key("connections.max.reauth.ms", LONG, "0",
        doc="The maximum lifetime, in milliseconds, of a SASL session. The client must authenticate again "
            "before it ends, or the broker closes the connection. With 0, sessions do not end. The key can "
            "have a listener or mechanism prefix."),
)
# fmt: on
