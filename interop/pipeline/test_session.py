"""The JVM options and jars of a pipeline session, which come from the user and from the pipeline."""

from __future__ import annotations

import json
import subprocess
import zipfile
from pathlib import Path

from interop.pipeline_kills.processes import environment
from interop.reference import spark_python

START_S = 120.0
ASK = """
import json, os
from kwire.pipeline.session import session

spark = session("options", master="local[1]")
get = spark.sparkContext._jvm.java.lang.System.getProperty
names = ["of.defaults", "of.extra", "of.submit"]
names += ["arrow.enable_null_check_for_get", "arrow.enable_unsafe_memory_access"]
jars = [jar.rpartition("/")[2] for jar in spark.conf.get("spark.jars").split(",")]
connector = any(jar.startswith("spark-sql-kafka") for jar in jars)
print(json.dumps([get(name) for name in names] + [os.environ["SPARK_SUBMIT_OPTS"], jars[0], connector]))
spark.stop()
"""


def test_options_and_jars_of_the_user_take_precedence(tmp_path: Path) -> None:
    jar = tmp_path / "own.jar"
    with zipfile.ZipFile(jar, "w") as empty:
        empty.writestr("META-INF/MANIFEST.MF", "Manifest-Version: 1.0\n")
    (tmp_path / "spark-defaults.conf").write_text(
        "spark.driver.defaultJavaOptions -Dof.defaults=1\n"
        f"spark.jars {jar}\n"
        "spark.driver.extraJavaOptions -Dof.extra=2 -Darrow.enable_unsafe_memory_access=false\n"
    )
    given = {"SPARK_CONF_DIR": str(tmp_path), "SPARK_SUBMIT_OPTS": "-Dof.submit=3"}
    done = subprocess.run(
        [spark_python(), "-c", ASK],
        env=environment() | given,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=START_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert json.loads(done.stdout) == ["1", "2", "3", "false", "false", "-Dof.submit=3", "own.jar", True]
