"""Java clients that replace their keys often (KeyUpdate of TLS 1.3), as `jdk.tls.keyLimits` makes them do.

With Java's default, a connection replaces its keys after 2^37 bytes (KAFKA-13418).
"""

from __future__ import annotations

import subprocess
from pathlib import Path

from interop.brokers import Broker
from interop.reference import kafka_jars, require_java
from interop.scenarios.spark import create_retained_topic
from interop.tls import encrypted

RECORDS = 20_000
LIMITS = "jdk.tls.keyLimits=AES/GCM/NoPadding KeyUpdate 2^18, ChaCha20-Poly1305 KeyUpdate 2^18\n"
RUN_SECONDS = 120


def test_keys_that_clients_replace_often(kind: type[Broker], tmp_path: Path) -> None:
    limits, properties = tmp_path / "java.security", tmp_path / "client.properties"
    limits.write_text(LIMITS)
    with encrypted(kind) as tls:
        create_retained_topic(tls.broker, "t", 1)
        properties.write_text(tls.of_java(tls.key_store()))
        common = ["--bootstrap-server", tls.bootstrap["MUTUAL"], "--command-config", str(properties)]
        common += ["--topic", "t", "--num-records", str(RECORDS)]

        def run(tool: str, *arguments: str) -> str:
            ended = subprocess.run(
                [
                    require_java(),
                    *(f"-Djava.security.properties={limits}", "-Djavax.net.debug=ssl:handshake"),
                    *("-cp", f"{kafka_jars()}/*", f"org.apache.kafka.tools.{tool}", *common, *arguments),
                ],
                capture_output=True,
                text=True,
                timeout=RUN_SECONDS,
                check=True,
            )
            output = ended.stdout + ended.stderr
            assert output.count("KeyUpdate") > 10, f"{tool} has not replaced its keys"
            return output

        produced = run("ProducerPerformance", "--record-size", "1000", "--throughput", "-1")
        assert f"{RECORDS} records sent" in produced
        consumed = run("ConsumerPerformance", "--timeout", "30000")
        assert f", {RECORDS}, " in consumed, consumed[-2000:]
