from contextlib import suppress
from pathlib import Path

from full_disk import import_lines

from kwire.testing import Broker


def test_no_line_is_lost_when_the_disk_of_the_broker_is_full(kwire_broker: Broker, tmp_path: Path) -> None:
    kwire_broker.create_topic("lines")
    source = tmp_path / "measurements.csv"
    source.write_text("1.0\n2.0\n")
    import_lines(kwire_broker.bootstrap_servers, source)

    with source.open("a") as file:
        file.write("3.0\n4.0\n")
    kwire_broker.fill_disk()
    with suppress(RuntimeError):
        import_lines(kwire_broker.bootstrap_servers, source)

    kwire_broker.free_disk()
    kwire_broker.start()
    import_lines(kwire_broker.bootstrap_servers, source)
    assert [line.value for line in kwire_broker.records("lines")] == [b"1.0", b"2.0", b"3.0", b"4.0"]
