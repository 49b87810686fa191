"""The Spark code that writes a micro-batch into an archive, run in a user's session."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

from interop.pipeline_kills.processes import environment
from interop.reference import spark_python

RUN_S = 240.0
WRITE = """
import json
from pathlib import Path
from types import SimpleNamespace
from pyspark.sql import SparkSession
from kwire.pipeline.archive.direct import US_PER_DAY, date_of
from kwire.pipeline.jobs.archive import _write, describe_staged
from kwire.pipeline.archive.manifest import ArchiveError
from kwire.pipeline.archive.micro_batches import check_complete

tokyo = SparkSession.builder.master("local[1]").config("spark.sql.session.timeZone", "Asia/Tokyo")
spark = tokyo.getOrCreate()
config = SimpleNamespace(compression="zstd", records_per_file=100)
evening = 1_700_000_000_000_000  # 2023-11-14T22:13:20Z, which in Tokyo is the next day
micros = [-1, 0, US_PER_DAY - 1, US_PER_DAY, evening, 2_932_897 * US_PER_DAY, (1 << 63) - 1]
records = spark.createDataFrame(list(enumerate(micros)), "offset long, micros long").selectExpr(
    "'t' topic", "0 partition", "offset", "timestamp_micros(micros) timestamp", "0 timestampType",
    "binary('k') key", "binary('v') value", "cast(null as array<struct<key: string, value: binary>>) headers",
)

def put(frame, place):
    written = _write(frame, place, config)
    files = describe_staged(spark, place)
    try:
        check_complete(written, files, "there")
        said = ""
    except ArchiveError as error:
        said = str(error)
    return written, files, said

here = Path.cwd()
written, files, said = put(records, here / "plain")
dates = {offset: file.date for file in files for offset in range(file.first_offset, file.last_offset + 1)}
right = all(dates[at] == date_of(one // US_PER_DAY) for at, one in enumerate(micros) if at in dates)
none = put(records.where("offset < 0"), here / "none")
gone = put(records, Path(f"file:{here}/elsewhere"))
print(json.dumps([written, len(files), said, right, dates[4], none, gone]))
spark.stop()
"""


def test_archive_dates_are_utc_and_written_records_are_counted(tmp_path: Path) -> None:
    done = subprocess.run(
        [spark_python(), "-c", WRITE],
        env=environment(),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=RUN_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    written, files, said, right, date, none, gone = json.loads(done.stdout)
    assert (written, files, said) == (7, 6, "")
    assert right
    assert date == "2023-11-14"
    assert none == [0, [], ""]
    assert gone[:2] == [7, []]
    assert gone[2].startswith("Spark has written 7 records to there, but the files there contain 0")
