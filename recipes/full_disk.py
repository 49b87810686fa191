"""Import the lines of a file into Kafka. `NAME.done` has the number of lines that Kafka has stored."""

from pathlib import Path

from confluent_kafka import KafkaError, Message, Producer


def import_lines(servers: str, source: Path) -> None:
    done = source.with_suffix(".done")
    first = int(done.read_text()) if done.exists() else 0
    lines = source.read_text().splitlines()
    errors: list[KafkaError] = []

    def on_delivery(error: KafkaError | None, message: Message) -> None:
        if error is not None:
            errors.append(error)

    producer = Producer({"bootstrap.servers": servers, "message.timeout.ms": 3_000, "linger.ms": 100})
    for line in lines[first:]:
        producer.produce("lines", line.encode(), on_delivery=on_delivery)
    producer.flush()
    if errors:
        raise RuntimeError(f"Kafka did not store {len(errors)} lines of {source}: {errors[0]}")
    done.write_text(str(len(lines)))
