"""Archives the classes that Spark loads, for the tests: Java maps the file instead of reading and checking them again.

python tools/make_class_archive.py FILE   runs the demo once, and writes what its Java has loaded
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

from servicebroker.cli.demo.run import run_demo, say_nothing
from servicebroker.model.errors import InstanceError

LINES = 100


def main(arguments: list[str]) -> int:
    """Write the file. Where there is no Java there is none to write, and the tests do without."""
    path = Path(arguments[0]).resolve()
    fresh = path.with_suffix(f".{os.getpid()}")
    os.environ["SPARK_SUBMIT_OPTS"] = f'-XX:ArchiveClassesAtExit="{fresh}" -XX:+UseSerialGC -XX:TieredStopAtLevel=1'
    try:
        with tempfile.TemporaryDirectory(prefix="servicebroker-archive-") as folder:
            os.chmod(folder, 0o711)  # a server of root's runs as somebody else
            source = Path(folder, "lines")
            source.write_text("".join(f"line {number}\n" for number in range(LINES)))
            run_demo(source, Path(folder, "out"), say_nothing())
        _end_java()
        fresh.replace(path)
    except (InstanceError, OSError) as problem:
        print(f"No archive of Spark's classes is made, and tests do without: {problem}", file=sys.stderr)
    finally:
        fresh.unlink(missing_ok=True)
    return 0


def _end_java() -> None:
    """Wait until it has ended, which is when it writes."""
    from pyspark import SparkContext

    gateway = SparkContext._gateway
    assert gateway is not None
    gateway.shutdown()
    gateway.proc.stdin.close()
    gateway.proc.wait()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
