"""A quiet local Spark session: Java found, nothing on the terminal, no network beyond this machine."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from servicebroker.model.errors import InstanceError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

OLDEST_JAVA = 17
INSTALL_JAVA = (
    f"Spark needs Java {OLDEST_JAVA} or newer: install it (Debian and Ubuntu: apt install openjdk-17-jre-headless; "
    "macOS: brew install openjdk@17), or set JAVA_HOME to where it is."
)


def spark_session(
    app_name: str,
    *,
    master: str | None = None,
    cores: int | None = None,
    memory: str = "1g",
    config: Mapping[str, str] | None = None,
    held: Sequence[int] = (),
) -> SparkSession:
    """A session with our formats: the one that is running, that of `spark-submit`, or a local one of our own.

    Ours prints nothing, shows no web page, listens on 127.0.0.1 only and works without a resolvable host name.

    Args:
        app_name: how Spark calls it.
        master: where the tasks run, as Spark names it; None for this machine.
        cores: tasks at a time on this machine; None for all cores.
        memory: heap of the Java process, as `-Xmx` takes it.
        config: further Spark settings, which win.
        held: file descriptors that Java keeps open too: a lock on one of them lasts until both processes are gone,
            since Java outlives a killed driver for a moment.

    Raises:
        InstanceError: pyspark or Java is missing, Java is too old, or Spark does not start.
    """
    try:
        from pyspark import SparkConf, SparkContext
        from pyspark.sql import SparkSession
    except ImportError:
        raise InstanceError("The pipeline needs PySpark: pip install 'servicebroker[spark]'.") from None
    if is_running():
        return SparkSession.getActiveSession() or SparkSession.builder.getOrCreate()  # of another thread
    if "PYSPARK_GATEWAY_PORT" in os.environ:  # spark-submit has started Java, with settings of its own
        submitted = SparkSession.builder.appName(app_name).config("spark.sql.session.timeZone", "UTC").getOrCreate()
        register_formats(submitted)
        return submitted
    check_java()
    master = master or f"local[{cores or '*'}]"
    settings = SparkConf(loadDefaults=False)
    settings.setMaster(master).setAppName(app_name)
    if not master.startswith("local["):
        settings.setAll([*_away().items()])
    settings.setAll([*_settings(cores, memory).items(), *(config or {}).items()])
    with tempfile.TemporaryFile("w+", errors="replace") as said:
        try:
            _launch(settings, said, held)
        except Exception as problem:
            said.seek(0)
            raise InstanceError(f"Spark does not start: {_why(problem, said.read())}") from problem
    session = SparkSession(SparkContext.getOrCreate())
    register_formats(session)
    return session


def is_running() -> bool:
    """Whether somebody has started a session in this process, in whatever thread, which `spark_session` would give."""
    try:
        from pyspark import SparkContext
    except ImportError:
        return False
    return SparkContext._active_spark_context is not None


def _settings(cores: int | None, memory: str) -> dict[str, str]:
    tasks = cores or os.cpu_count() or 2
    logging = (resources.files(__package__) / "log4j2.properties").joinpath()
    return {
        "spark.driver.memory": memory,
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile={Path(str(logging)).as_uri()}",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": str(tasks),
        # few, large batches between Java and Python
        "spark.sql.execution.arrow.maxRecordsPerBatch": "50000",
        "spark.sql.streaming.stopTimeout": "10s",  # of endless: whoever is asked to end ends
        "spark.python.authenticate.socketTimeout": "120s",  # of 15: on a busy machine Python starts slowly
        "spark.python.daemon.module": "servicebroker.pipeline.worker_daemon",
        "spark.sql.warehouse.dir": Path(tempfile.gettempdir(), "servicebroker-spark-warehouse").as_uri(),
    }


def _away() -> dict[str, str]:
    """Executors are processes of their own: those on this machine find Python and our packages as this one does."""
    os.environ.setdefault("SPARK_SCALA_VERSION", "2.13")
    return {
        "spark.pyspark.python": sys.executable,
        "spark.executorEnv.PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
        "spark.executorEnv.SPARK_LOCAL_IP": "127.0.0.1",
    }


def _launch(settings: object, said: IO[str], held: Sequence[int]) -> None:
    """Start Java with its own place for what it says: its first warnings come before any logging is set up."""
    from pyspark import SparkContext
    from pyspark.java_gateway import launch_gateway

    # Read by Java before any setting: an unknown host name would stop it, another Python would lack our packages.
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    if SparkContext._gateway is None:  # else Java still runs from a session that was stopped
        popen = {"stdout": said, "stderr": said, "pass_fds": tuple(held)}
        gateway = launch_gateway(settings, popen)  # type: ignore[no-untyped-call] # pyspark has no types here
    else:
        gateway = None
    at_interrupt = signal.getsignal(signal.SIGINT)
    context: Any = SparkContext(conf=settings, gateway=gateway)  # type: ignore[arg-type] # both come from pyspark
    context._accumulatorServer.handle_error = _say_nothing
    if threading.current_thread() is threading.main_thread():
        # Spark's own handler calls Java in the middle of another call, and prints what comes of it
        signal.signal(signal.SIGINT, at_interrupt)


def _say_nothing(*of: object) -> None:
    """In place of the traceback that PySpark's server of accumulators prints when Java is gone, which we tell."""


def register_formats(session: SparkSession) -> None:
    """Name our formats; PySpark finds them by itself only where the modules pyspark_* can be listed.

    Queries that start side by side in one session want a registration each: Spark keeps one map of environment
    variables per registration, writes into it as a query starts, and copies it into the tasks of those that run
    (decision 135).
    """
    from servicebroker.pipeline.sinks.delta import DeltaSink
    from servicebroker.pipeline.sinks.warehouse import WarehouseSink
    from servicebroker.pipeline.source import ServiceBrokerSource

    for source in (ServiceBrokerSource, DeltaSink, WarehouseSink):
        session.dataSource.register(source)


def check_java() -> None:
    """Find a Java that Spark can run on.

    Raises:
        InstanceError: there is none, or it is too old.
    """
    home = os.environ.get("JAVA_HOME")
    java = os.path.join(home, "bin", "java") if home else shutil.which("java")
    version = _java_version(java) if java else None
    if version is None:
        raise InstanceError(f"No Java was found{f' in JAVA_HOME ({home})' if home else ''}. {INSTALL_JAVA}")
    if version < OLDEST_JAVA:
        raise InstanceError(f"'{java}' is Java {version}. {INSTALL_JAVA}")


def _java_version(java: str) -> int | None:
    """17 for a Java that calls itself 17.0.15, 8 for 1.8.0; None when there is none."""
    try:
        said = subprocess.run([java, "-version"], capture_output=True, text=True, check=False, timeout=30).stderr
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = re.search(r'version "(?:1\.)?(\d+)', said)
    return int(found[1]) if found else None


def how_java_ended(problem: Exception) -> str:
    """How the Java of this process has ended, or that it does not answer, in the words that follow its name."""
    from pyspark import SparkContext

    process = getattr(SparkContext._gateway, "proc", None)
    if process is None:  # spark-submit has started it
        return f"does not answer any more ({_one_line(str(problem))})"
    try:
        code = process.wait(timeout=_ENDING)
    except subprocess.TimeoutExpired:
        return f"does not answer any more ({_one_line(str(problem))})"
    if code == -signal.SIGKILL:
        return "was killed (signal 9), as the system does it where memory runs out"
    return f"was ended by signal {-code}" if code < 0 else f"has ended with code {code}"


def _why(problem: Exception, said: str) -> str:
    """The sentence that says why Spark has not started: of what Java has thrown or printed, the innermost error.

    What it says of itself when it starts, warnings and the banner, is no reason.
    """
    thrown = str(problem) if type(problem).__name__ == "Py4JJavaError" else ""
    for text in filter(None, (thrown, said)):
        lines = [line.strip() for line in text.splitlines() if not _SAYS_NOTHING.match(line)]
        causes = [line.removeprefix("Caused by: ") for line in lines if line.startswith("Caused by: ")]
        errors = [line.lstrip(": ") for line in lines if _SAYS_ERROR.search(line)]
        for found in (causes[-1:], errors[:1], lines[-1:] if text is said else []):
            if found:
                return found[0]
    return _one_line(str(problem))


def _one_line(text: str) -> str:
    return " ".join(text.split())


_ENDING = 5.0  # seconds that a Java whose connection is broken may need to end
_SAYS_ERROR = re.compile(r"[a-z]\w*\.[\w.]*(Exception|Error)\b|\bException in|\bERROR\b|\bError\b|\b[Ii]nvalid\b")
_SAYS_NOTHING = re.compile(
    r"WARNING:|\s*at |\s*\.\.\. \d+ more|.*\bWARN\b|Using Spark's default|Setting default log|To adjust logging|"
    r"Picked up |Welcome to|Using Scala|Branch |Compiled by|Revision |Url |Type --help|An error occurred while calling|"
    r"[\s_/\\.,'`-]*(version [\d.]+\S*)?[\s_/\\.,'`-]*$"
)
