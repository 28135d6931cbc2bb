"""Writes an archive of the classes that Spark loads, with which each Java of the tests starts in half the time.

    python tools/spark_classes.py .venv/spark.jsa

Java checks the archive against its own version and against Spark's jars, and starts without it where they differ.
`tests/conftest.py` names the archive to Spark when it exists.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

# as in tests/conftest.py: the archive holds for the same collector only
JAVA_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xlog:disable"
PROGRAM = """
import sys
from pyspark import SparkContext
from servicebroker.pipeline.spark_session import spark_session

session, folder = spark_session("classes", cores=1), sys.argv[1]
rows = session.range(100).selectExpr("id", "id % 7 as part", "string(id) as text", "binary(string(id)) as body")
rows.write.partitionBy("part").parquet(f"{folder}/rows")
read = session.read.parquet(f"{folder}/rows")
read.groupBy("part").count().join(read, "part").orderBy("id").collect()
read.mapInArrow(lambda batches: batches, read.schema).toPandas()
session.sql("select from_json('{\\"a\\": 1}', 'a int').a, xpath_string('<a>1</a>', '/a')").collect()
session.createDataFrame([(1, "a")], "id int, text string").collect()
stream = session.readStream.schema(read.schema).parquet(f"{folder}/rows")
query = stream.writeStream.format("parquet").option("checkpointLocation", f"{folder}/checkpoint")
query.trigger(availableNow=True).start(f"{folder}/copy").awaitTermination()
java = SparkContext._gateway.proc
session.stop()
java.stdin.close()
java.wait()
"""


def main(arguments: list[str]) -> int:
    """Run a program that uses much of Spark; Java writes the archive when it ends."""
    archive = Path(arguments[0])
    archive.unlink(missing_ok=True)
    options = f"{JAVA_OPTIONS} -XX:ArchiveClassesAtExit={archive.absolute()}"
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-c", PROGRAM, folder]
        subprocess.run(command, env=os.environ | {"SPARK_SUBMIT_OPTS": options}, check=True, cwd=folder)
    return 0 if archive.exists() else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
