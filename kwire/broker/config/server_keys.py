"""How a node, its listeners, its quorum, replication, quotas and metrics are set up.

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
        doc="The older name of node.id, kept so that old property files load; -1 means it is not set. When "
            "it is set it has to equal node.id."),
    Key("num.io.threads", INT, "8", at_least(1), update_mode=CLUSTER_WIDE,
        doc="How many threads work on requests once they have been read from the network, disk access "
            "included."),
    Key("num.replica.alter.log.dirs.threads", INT, None,
        doc="How many threads copy replicas from one log directory of this broker to another. Unset means "
            "one for each log directory."),
    Key("background.threads", INT, "10", at_least(1), update_mode=CLUSTER_WIDE,
        doc="How many threads share the broker's housekeeping, such as flushing, retention and checkpoints."),
    Key("request.timeout.ms", INT, "30000",
        doc="Milliseconds this node, when it is itself the client, waits for an answer before it retries "
            "the request or gives it up."),
    Key("socket.connection.setup.timeout.ms", LONG, "10000",
        doc="Milliseconds an outgoing connection gets to be established. Each failure in a row roughly "
            "doubles it, up to socket.connection.setup.timeout.max.ms."),
    Key("socket.connection.setup.timeout.max.ms", LONG, "30000",
        doc="The ceiling, in milliseconds, for the growing time that attempts to open one outgoing "
            "connection get."),
    Key("config.providers", LIST, "", update_mode=CLUSTER_WIDE,
        doc="Short names of the providers that fill in placeholders in other settings; "
            "config.providers.NAME.class says what each one is. Empty means placeholders are not resolved."),
    Key("early.start.listeners", LIST, None,
        doc="Listeners allowed to take connections before the authorizer is ready. Unset means the "
            "controller's listeners; a listener the authorizer itself needs belongs here."),
    Key("broker.rack", STRING, None,
        doc="The rack, zone or site this broker stands in, used to spread replicas and to let consumers "
            "read nearby. Unset means the location is unknown."),
    Key("controlled.shutdown.enable", BOOLEAN, "true",
        doc="Whether a broker that is stopping first has its partitions led by others, so that clients see "
            "less of an interruption."),
    Key("max.incremental.fetch.session.cache.slots", INT, "1000", at_least(0),
        doc="How many incremental fetch sessions the broker remembers at a time; 0 makes every fetch a full "
            "one."),
    Key("fetch.max.bytes", INT, "57671680", at_least(1024),
        doc="The most bytes the broker puts into one fetch response, whatever the client asked for. A first "
            "batch larger than this is still returned, so that readers never get stuck."),
    Key("max.request.partition.size.limit", INT, "2000", at_least(1),
        doc="The most partitions one DescribeTopicPartitions response lists; a client pages through the "
            "rest."),
    Key("unstable.api.versions.enable", BOOLEAN, "false", internal=True,
        doc="Whether the node offers request versions whose wire format may still change. Meant for "
            "development, not for data that has to last."),
    Key("unstable.feature.versions.enable", BOOLEAN, "false", internal=True,
        doc="Whether feature levels that are not final yet may be used. A cluster that has used one may be "
            "impossible to upgrade."),
    Key("process.roles", LIST, REQUIRED, ListValidator("broker", "controller"),
        doc="What this node is: broker, controller, or both separated by a comma."),
    Key("node.id", INT, REQUIRED, at_least(0),
        doc="The number, 0 or more, that identifies this node; no two nodes of a cluster may share it."),
    Key("initial.broker.registration.timeout.ms", INT, "60000",
        doc="Milliseconds a starting broker gets to register with the controller before it exits."),
    Key("broker.heartbeat.interval.ms", INT, "2000",
        doc="Milliseconds between the heartbeats a broker sends to the active controller."),
    Key("broker.session.timeout.ms", INT, "9000",
        doc="Milliseconds without a heartbeat after which the controller fences a broker and moves its "
            "leaderships away."),
    Key("controller.listener.names", LIST, REQUIRED,
        doc="The listeners controllers talk on, separated by commas. Brokers connect through the first, and "
            "a broker must not advertise any of them."),
    Key("controller.performance.sample.period.ms", LONG, "60000", at_least(100), internal=True,
        doc="Milliseconds between summaries of how fast the controller's events were, written to the log."),
    Key("controller.performance.always.log.threshold.ms", LONG, "2000", at_least(0), internal=True,
        doc="Milliseconds from which a single controller event counts as slow and gets a log line of its "
            "own; 0 reports all of them."),
    Key("server.max.startup.time.ms", LONG, "9223372036854775807", at_least(0), internal=True,
        doc="Milliseconds the node may take to start before it gives up. The largest number means as long "
            "as it takes."),
    Key("metadata.log.max.record.bytes.between.snapshots", LONG, "20971520", at_least(1),
        doc="Bytes of metadata records after the latest snapshot that cause the next one to be taken."),
    Key("metadata.log.max.snapshot.interval.ms", LONG, "3600000", at_least(0),
        doc="Milliseconds after which a snapshot of the metadata is taken if anything changed since the "
            "last; 0 means that only size decides."),
    Key("metadata.log.dir", STRING, None,
        doc="The directory of the metadata log. Unset means the first of log.dirs."),
    Key("metadata.log.segment.bytes", INT, "1073741824", at_least(8_388_608),
        doc="The size in bytes at which the metadata log closes a segment and starts another."),
    Key("metadata.log.segment.ms", LONG, "604800000",
        doc="The age in milliseconds at which the metadata log closes a segment even if it is not full."),
    Key("metadata.max.retention.bytes", LONG, "104857600",
        doc="Bytes the metadata log and its snapshots may take together before the oldest are removed; a "
            "negative number means no limit. What no snapshot covers is never removed."),
    Key("metadata.max.retention.ms", LONG, "604800000",
        doc="Milliseconds old metadata snapshots and segments are kept before they are removed; a negative "
            "number means age removes nothing. What no snapshot covers stays."),
    Key("metadata.max.idle.interval.ms", INT, "500", at_least(0),
        doc="Milliseconds of quiet after which the active controller appends an empty record, so that "
            "replicas see the log advance; 0 turns this off."),
    Key("internal.metadata.log.segment.bytes", INT, None, internal=True,
        doc="Replaces metadata.log.segment.bytes without its lower bound, for tests that need tiny "
            "segments. Unset means it is not used."),
    Key("internal.metadata.max.batch.size.in.bytes", INT, "8388608", internal=True,
        doc="The largest batch, in bytes, that the metadata log accepts."),
    Key("internal.metadata.delete.delay.millis", LONG, "60000", internal=True,
        doc="Milliseconds between taking a metadata file out of use and removing it from disk."),
    Key("listeners", LIST, "PLAINTEXT://:9092", ListValidator(can_be_empty=False), update_mode=PER_BROKER,
        doc="The sockets this node opens, as NAME://host:port separated by commas. An empty host means the "
            "default interface, 0.0.0.0 all of them, and port 0 any free port."),
    Key("advertised.listeners", LIST, None,
        doc="The addresses clients and brokers are told to connect to, as NAME://host:port. Unset means "
            "those of listeners; 0.0.0.0 cannot be advertised."),
    Key("listener.security.protocol.map", STRING,
        "SASL_SSL:SASL_SSL,PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_PLAINTEXT:SASL_PLAINTEXT", update_mode=PER_BROKER,
        doc="The security protocol of each listener, as NAME:PROTOCOL pairs separated by commas."),
    Key("socket.send.buffer.bytes", INT, "102400",
        doc="The send buffer, in bytes, of the sockets clients connect to; -1 leaves it to the operating "
            "system."),
    Key("socket.receive.buffer.bytes", INT, "102400",
        doc="The receive buffer, in bytes, of the sockets clients connect to; -1 leaves it to the operating "
            "system."),
    Key("socket.request.max.bytes", INT, "104857600", at_least(1),
        doc="The largest request, in bytes, a client may send; the connection of one that exceeds it is "
            "closed."),
    Key("socket.listen.backlog.size", INT, "50", at_least(1),
        doc="How many connections may wait to be accepted on a listening socket. The operating system may "
            "cap it lower."),
    Key("max.connections.per.ip", INT, "2147483647", at_least(0), update_mode=CLUSTER_WIDE,
        doc="How many connections one address may hold at a time. With 0, only addresses in "
            "max.connections.per.ip.overrides get in."),
    Key("max.connections.per.ip.overrides", STRING, "", update_mode=CLUSTER_WIDE,
        doc="Connection limits for single hosts or addresses, as HOST:COUNT pairs separated by commas; "
            "these go before max.connections.per.ip. Empty means no exceptions."),
    Key("max.connections", INT, "2147483647", at_least(0), update_mode=CLUSTER_WIDE,
        doc="How many connections the broker holds at a time. With a listener's prefix it limits that "
            "listener; brokers are let in regardless, at the cost of an idle client's connection."),
    Key("max.connection.creation.rate", INT, "2147483647", at_least(0), update_mode=CLUSTER_WIDE,
        doc="New connections a second the broker accepts; above this it delays accepting them. With a "
            "listener's prefix it limits that listener."),
    Key("connections.max.idle.ms", LONG, "600000",
        doc="Milliseconds a connection may stay silent before the broker closes it; a negative number means "
            "idle connections stay open."),
    Key("connection.failed.authentication.delay.ms", INT, "100", at_least(0),
        doc="Milliseconds by which closing a connection that failed to authenticate is put off, to slow "
            "down guessing. Has to be below connections.max.idle.ms."),
    Key("queued.max.requests", INT, "500", at_least(1),
        doc="How many requests may wait for an I/O thread before the network threads stop reading more."),
    Key("queued.max.request.bytes", LONG, "-1",
        doc="Bytes of waiting requests above which nothing more is read from the network; -1 means no "
            "limit."),
    Key("num.network.threads", INT, "3", at_least(1), update_mode=CLUSTER_WIDE,
        doc="How many threads each listener has to read requests from, and write responses to, its sockets."),
    Key("controller.socket.timeout.ms", INT, "30000",
        doc="Milliseconds a broker waits for the controller to answer one of its requests."),
    Key("default.replication.factor", INT, "1",
        doc="How many replicas the partitions of topics get that were created automatically or with no "
            "replication factor given."),
    Key("replica.lag.time.max.ms", LONG, "30000",
        doc="Milliseconds a follower may go without reaching the end of its leader's log before it drops "
            "out of the in-sync replicas."),
    Key("replica.socket.timeout.ms", INT, "30000",
        doc="Milliseconds a follower waits for its leader to answer. Should be no less than "
            "replica.fetch.wait.max.ms."),
    Key("replica.socket.receive.buffer.bytes", INT, "65536",
        doc="The receive buffer, in bytes, of the sockets a follower fetches through; -1 leaves it to the "
            "operating system."),
    Key("replica.fetch.max.bytes", INT, "1048576", at_least(0),
        doc="Bytes a follower asks for from each partition in one fetch. A first batch larger than this "
            "still arrives whole."),
    Key("replica.fetch.wait.max.ms", INT, "500",
        doc="Milliseconds a leader may hold a follower's fetch while there is too little to send. Keep it "
            "below replica.lag.time.max.ms."),
    Key("replica.fetch.backoff.ms", INT, "1000", at_least(0),
        doc="Milliseconds a follower leaves a partition alone after fetching it failed."),
    Key("replica.fetch.min.bytes", INT, "1",
        doc="Bytes a leader should have for a follower before it answers a fetch; until then it waits up to "
            "replica.fetch.wait.max.ms."),
    Key("replica.fetch.response.max.bytes", INT, "10485760", at_least(0),
        doc="Bytes a follower asks for in one fetch over all partitions. A first batch larger than this "
            "still arrives whole."),
    Key("num.replica.fetchers", INT, "1", at_least(1), update_mode=CLUSTER_WIDE,
        doc="How many threads fetch from each broker this one follows. More of them copy faster, at the "
            "price of memory and processor time."),
    Key("replica.high.watermark.checkpoint.interval.ms", LONG, "5000",
        doc="Milliseconds between the times the high watermarks of all partitions are written to disk."),
    Key("fetch.purgatory.purge.interval.requests", INT, "1000",
        doc="How many finished fetches may pile up among the waiting ones before they are cleared out."),
    Key("producer.purgatory.purge.interval.requests", INT, "1000",
        doc="How many finished produce requests may pile up among the waiting ones before they are cleared "
            "out."),
    Key("delete.records.purgatory.purge.interval.requests", INT, "1",
        doc="How many finished DeleteRecords requests may pile up among the waiting ones before they are "
            "cleared out."),
    Key("auto.leader.rebalance.enable", BOOLEAN, "true",
        doc="Whether the controller regularly gives partitions back to the replica that is preferred as "
            "their leader."),
    Key("leader.imbalance.check.interval.seconds", LONG, "300", at_least(1),
        doc="Seconds between the controller's looks for partitions that are not led by their preferred "
            "replica."),
    Key("inter.broker.listener.name", STRING, None,
        doc="The listener brokers use among themselves. Unset means the one that "
            "security.inter.broker.protocol implies; the two cannot be set together."),
    Key("replica.selector.class", STRING, None,
        doc="The class that decides which replica a consumer should read from. Unset means the leader."),
    Key("controller.quorum.voters", LIST, "",
        doc="The fixed set of controllers, as ID@host:port separated by commas. Empty means the voters are "
            "kept in the metadata log and found through controller.quorum.bootstrap.servers."),
    Key("controller.quorum.bootstrap.servers", LIST, "",
        doc="Addresses, as host:port separated by commas, at which the controller quorum can be found when "
            "its members are not fixed. Empty means controller.quorum.voters is used."),
    Key("controller.quorum.election.timeout.ms", INT, "1000", at_least(0),
        doc="Milliseconds a voter waits for an election to be decided before it tries again; a random "
            "amount is added so that voters do not collide."),
    Key("controller.quorum.fetch.timeout.ms", INT, "2000", at_least(0),
        doc="Milliseconds without a successful fetch after which a voter stands for election. A leader that "
            "a majority has not fetched from for this long steps down."),
    Key("controller.quorum.election.backoff.max.ms", INT, "1000", at_least(0),
        doc="The most milliseconds a candidate that lost pauses before its next election."),
    Key("controller.quorum.append.linger.ms", INT, "25", at_least(0),
        doc="Milliseconds the quorum's leader collects records before it writes them to disk; 0 writes at "
            "once."),
    Key("controller.quorum.request.timeout.ms", INT, "2000", at_least(0),
        doc="Milliseconds a quorum member waits for another to answer before it retries or gives up."),
    Key("controller.quorum.retry.backoff.ms", INT, "20", at_least(0),
        doc="Milliseconds a quorum member pauses before it repeats a request that failed."),
    Key("controller.quorum.auto.join.enable", BOOLEAN, "false",
        doc="Whether a controller that is not a voter asks to become one as soon as it has caught up. Needs "
            "a quorum whose members are not fixed."),
    Key("controller.quorum.fetch.snapshot.max.bytes", INT, "1048576", at_least(1),
        doc="The most bytes of a metadata snapshot asked for in one request."),
    Key("controller.quorum.fetch.max.bytes", INT, "1048576", at_least(1),
        doc="The most bytes of the metadata log asked for in one fetch."),
    Key("metrics.num.samples", INT, "2", at_least(1),
        doc="How many time windows a metric is computed over."),
    Key("metrics.sample.window.ms", LONG, "30000", at_least(1),
        doc="The length of each of a metric's windows, in milliseconds."),
    Key("metric.reporters", LIST, "org.apache.kafka.common.metrics.JmxReporter", update_mode=CLUSTER_WIDE,
        doc="The classes that are told about metrics as they come and go, separated by commas. Empty means "
            "none."),
    Key("metrics.recording.level", STRING, "INFO",
        doc="How much detail the metrics record: INFO, DEBUG or TRACE."),
    Key("kafka.metrics.reporters", LIST, "",
        doc="Classes that report the broker's older, Yammer kind of metrics, separated by commas. Empty "
            "means none."),
    Key("kafka.metrics.polling.interval.secs", INT, "10", at_least(1),
        doc="Seconds between two rounds of the classes named by kafka.metrics.reporters."),
    Key("telemetry.max.bytes", INT, "1048576", at_least(1),
        doc="The largest metrics payload, in bytes, that a client may push to the broker."),
    Key("quota.window.num", INT, "11", at_least(1),
        doc="How many time windows the rates behind client quotas are computed over."),
    Key("replication.quota.window.num", INT, "11", at_least(1),
        doc="How many time windows the throttled replication rate is computed over."),
    Key("alter.log.dirs.replication.quota.window.num", INT, "11", at_least(1),
        doc="How many time windows the throttled rate of copies between log directories is computed over."),
    Key("controller.quota.window.num", INT, "11", at_least(1),
        doc="How many time windows the rate of topic and partition changes is computed over."),
    Key("quota.window.size.seconds", INT, "1", at_least(1),
        doc="The length, in seconds, of each window that client quotas are computed over."),
    Key("replication.quota.window.size.seconds", INT, "1", at_least(1),
        doc="The length, in seconds, of each window the throttled replication rate is computed over."),
    Key("alter.log.dirs.replication.quota.window.size.seconds", INT, "1", at_least(1),
        doc="The length, in seconds, of each window the throttled rate of copies between log directories is "
            "computed over."),
    Key("controller.quota.window.size.seconds", INT, "1", at_least(1),
        doc="The length, in seconds, of each window the rate of topic and partition changes is computed "
            "over."),
    Key("client.quota.callback.class", CLASS, None,
        doc="The class that decides which quota a request counts against. Unset means the quotas stored in "
            "the cluster apply."),
    Key("connections.max.reauth.ms", LONG, "0",
        doc="Milliseconds a SASL session lasts at most before the client has to authenticate again or is "
            "cut off; 0 means sessions are not limited. Can be set for one listener or mechanism by prefix."),
)
# fmt: on
