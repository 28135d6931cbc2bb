"""Starts a local Spark session: finds Java, suppresses Spark's output, and listens only on this machine."""

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
from importlib.util import find_spec
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from servicebroker.model.errors import InstanceError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MIN_JAVA_VERSION = 17
_WORKER_SCRIPT = str(resources.files(__package__) / "workers" / "worker_python.sh")
INSTALL_JAVA = (
    f"Spark needs Java {MIN_JAVA_VERSION} or newer: install it (Debian and Ubuntu: "
    "apt install openjdk-17-jre-headless; macOS: brew install openjdk@17), or set JAVA_HOME to its folder."
)


def spark_session(
    app_name: str,
    *,
    master: str | None = None,
    cores: int | None = None,
    memory: str = "1g",
    config: Mapping[str, str] | None = None,
    inherited: Sequence[int] = (),
) -> SparkSession:
    """Return a session with the formats of servicebroker: the running one, that of `spark-submit`, or a new one.

    A new session prints nothing, has no web page, listens only on 127.0.0.1 and needs no resolvable host name.

    Args:
        app_name: name of the application in Spark.
        master: Spark master URL for the tasks; None for this machine.
        cores: number of parallel tasks on this machine; None for the number of cores.
        memory: heap of the Java process, as in `-Xmx`.
        config: further Spark settings, which override the defaults here.
        inherited: file descriptors that Java inherits. So a file lock on one of them lasts until Java has ended, too,
            which outlives a killed driver for a short time.

    Raises:
        InstanceError: pyspark or Java is missing, Java is too old, Spark does not start, or this process is a client of
            Spark Connect.
    """
    try:
        from pyspark import SparkConf, SparkContext
        from pyspark.sql import SparkSession, is_remote
    except ImportError:
        raise InstanceError("The pipeline needs PySpark: pip install 'servicebroker[spark]'.") from None
    if is_remote() or "SPARK_REMOTE" in os.environ:
        raise InstanceError(
            "A pipeline cannot run over Spark Connect. Unset SPARK_REMOTE and stop the remote session, or use "
            "'servicebroker pipeline run'."
        )
    if is_running():
        # A session of another thread is not active in this thread.
        return SparkSession.getActiveSession() or SparkSession.builder.getOrCreate()
    if "PYSPARK_GATEWAY_PORT" in os.environ:  # spark-submit has started Java with its own settings
        submitted = SparkSession.builder.appName(app_name).config("spark.sql.session.timeZone", "UTC").getOrCreate()
        register_formats(submitted)
        return submitted
    check_java()
    master = master or f"local[{cores or '*'}]"
    settings = SparkConf(loadDefaults=False)
    settings.setMaster(master).setAppName(app_name)
    is_local = master.startswith("local[")
    if not is_local:
        settings.setAll([*_executor_settings().items()])
    settings.setAll([*_settings(cores, memory).items(), *(config or {}).items()])
    with tempfile.TemporaryFile("w+", errors="replace") as output:
        try:
            _launch(settings, output, inherited, is_local=is_local)
        except Exception as problem:
            output.seek(0)
            raise InstanceError(f"Spark does not start: {_start_error(problem, output.read())}") from problem
    session = SparkSession(SparkContext.getOrCreate())
    register_formats(session)
    return session


def is_running() -> bool:
    """True if this process has a session in any thread. `spark_session` then returns it."""
    try:
        from pyspark import SparkContext
    except ImportError:
        return False
    return SparkContext._active_spark_context is not None


def check_settings(config: Mapping[str, str]) -> None:
    """Check that further settings have an effect: `spark_session` will start Java.

    Raises:
        InstanceError: Spark runs already, or `spark-submit` starts it.
    """
    if config and (is_running() or "PYSPARK_GATEWAY_PORT" in os.environ):
        raise InstanceError(
            f"Spark runs already and keeps its settings, so '{min(config)}' has no effect: give it to spark-submit, or "
            "to the session that runs."
        )


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
        # Few large batches cost less between Java and Python than many small ones.
        "spark.sql.execution.arrow.maxRecordsPerBatch": "50000",
        "spark.sql.redaction.options.regex": "(?i)url|^instance$|^pipeline$",  # a plan shows other options
        "spark.sql.streaming.stopTimeout": "10s",  # the default is no timeout, and a query that hangs would never stop
        "spark.python.authenticate.socketTimeout": "120s",  # the default, 15 s, is too short on a busy machine
        "spark.python.daemon.module": "servicebroker.pipeline.workers.worker_daemon",
        "spark.sql.warehouse.dir": Path(tempfile.gettempdir(), "servicebroker-spark-warehouse").as_uri(),
    }


def _executor_settings() -> dict[str, str]:
    """Return settings with which executors in other processes use the same Python and packages as this process."""
    os.environ.setdefault("SPARK_SCALA_VERSION", "2.13")
    return {
        "spark.pyspark.python": sys.executable,
        "spark.executorEnv.PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
        "spark.executorEnv.SPARK_LOCAL_IP": "127.0.0.1",
    }


def _worker_python(*, is_local: bool) -> str:
    """Return the program that Spark starts for Python: for local tasks, a script that starts faster.

    The script removes PySpark's zip archives from the path, so PySpark must also be installed as files.
    """
    origins = [spec.origin for name in ("pyspark", "py4j") if (spec := find_spec(name)) and spec.origin]
    are_files = all(map(os.path.exists, origins))
    if not is_local or not are_files or not os.access(_WORKER_SCRIPT, os.X_OK):
        return sys.executable
    os.environ["SERVICEBROKER_WORKER_PYTHON"] = sys.executable
    return _WORKER_SCRIPT


def _launch(settings: object, output: IO[str], inherited: Sequence[int], *, is_local: bool) -> None:
    """Start Java. Its output goes to `output`, since its first warnings precede any configuration of logging."""
    from pyspark import SparkContext
    from pyspark.java_gateway import launch_gateway

    # Java reads these before any setting. SPARK_LOCAL_IP: an unresolvable host name would stop Java. PYSPARK_PYTHON:
    # another Python would lack this process's packages.
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    if os.environ.get("PYSPARK_PYTHON") in (None, _WORKER_SCRIPT):
        os.environ["PYSPARK_PYTHON"] = _worker_python(is_local=is_local)
    if SparkContext._gateway is None:  # otherwise Java of an earlier session still runs
        popen = {"stdout": output, "stderr": output, "pass_fds": tuple(inherited)}
        gateway = launch_gateway(settings, popen)  # type: ignore[no-untyped-call] # pyspark has no types here
    else:
        gateway = None
    sigint_handler = signal.getsignal(signal.SIGINT)
    context: Any = SparkContext(conf=settings, gateway=gateway)  # type: ignore[arg-type] # both come from pyspark
    context._accumulatorServer.handle_error = _ignore_error
    if threading.current_thread() is threading.main_thread():
        # Spark's own handler calls Java in the middle of another call, and prints the traceback of the error.
        signal.signal(signal.SIGINT, sigint_handler)


def _ignore_error(*arguments: object) -> None:
    """Replace the error handler of PySpark's accumulator server, which prints a traceback when Java has ended.

    `Run.poll` reports the end of Java.
    """


def register_formats(session: SparkSession) -> None:
    """Register the formats of servicebroker in a session.

    PySpark finds them by itself only if it can list the modules named pyspark_*. Queries that start at the same time in
    one session each need a registration. Spark has one map of environment variables per registration. It writes into
    the map when a query starts, and copies it into the tasks of running queries (decision 96).
    """
    from servicebroker.pipeline.sinks.delta import DeltaSink
    from servicebroker.pipeline.sinks.warehouse import WarehouseSink
    from servicebroker.pipeline.source import ServiceBrokerSource

    for source in (ServiceBrokerSource, DeltaSink, WarehouseSink):
        session.dataSource.register(source)


def check_modules(table_format: str) -> None:
    """Check that the modules are installed that a run imports, some only in Spark's processes.

    Raises:
        InstanceError: a module is missing.
    """
    extra = "spark,iceberg" if table_format == "iceberg" else "spark"
    library = "pyiceberg" if table_format == "iceberg" else "deltalake"
    for module in ("pyspark", "pandas", "pyarrow", "psycopg", "adbc_driver_postgresql", library):
        if find_spec(module) is None:
            raise InstanceError(f"{module} is not installed: pip install 'servicebroker[{extra}]'.")


def check_java() -> None:
    """Check that a Java is installed that Spark can use.

    Raises:
        InstanceError: Java is missing or too old.
    """
    home = os.environ.get("JAVA_HOME")
    java = os.path.join(home, "bin", "java") if home else shutil.which("java")
    version = _java_version(java) if java else None
    if version is None:
        raise InstanceError(f"No Java was found{f' in JAVA_HOME ({home})' if home else ''}. {INSTALL_JAVA}")
    if version < MIN_JAVA_VERSION:
        raise InstanceError(f"'{java}' is Java {version}. {INSTALL_JAVA}")


def _java_version(java: str) -> int | None:
    """Return the major version of a Java: 17 for 17.0.15, 8 for 1.8.0; None if it cannot be run."""
    try:
        output = subprocess.run([java, "-version"], capture_output=True, text=True, check=False, timeout=30).stderr
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = re.search(r'version "(?:1\.)?(\d+)', output)
    return int(match[1]) if match else None


def how_java_ended(problem: Exception) -> str:
    """Return a predicate for an error about Java: how it has ended, or that it does not answer any more."""
    from pyspark import SparkContext

    process = getattr(SparkContext._gateway, "proc", None)
    if process is None:  # spark-submit started Java
        return f"does not answer any more ({_one_line(str(problem))})"
    try:
        code = process.wait(timeout=_JAVA_END_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        return f"does not answer any more ({_one_line(str(problem))})"
    if code == -signal.SIGKILL:
        return "was killed (signal 9), as the system does it where memory runs out"
    return f"was ended by signal {-code}" if code < 0 else f"has ended with code {code}"


def _start_error(problem: Exception, output: str) -> str:
    """Return the reason why Spark did not start: the innermost error that Java threw or printed.

    Lines with warnings and Spark's banner are skipped.
    """
    thrown = str(problem) if type(problem).__name__ == "Py4JJavaError" else ""
    for text in filter(None, (thrown, output)):
        lines = [line.strip() for line in text.splitlines() if not _NOISE_LINE.match(line)]
        causes = [line.removeprefix("Caused by: ") for line in lines if line.startswith("Caused by: ")]
        errors = [line.lstrip(": ") for line in lines if _ERROR_LINE.search(line)]
        for candidates in (causes[-1:], errors[:1], lines[-1:] if text is output else []):
            if candidates:
                return candidates[0]
    return _one_line(str(problem))


def _one_line(text: str) -> str:
    return " ".join(text.split())


_JAVA_END_TIMEOUT_S = 5.0  # wait for the end of Java after its connection broke
_ERROR_LINE = re.compile(r"[a-z]\w*\.[\w.]*(Exception|Error)\b|\bException in|\bERROR\b|\bError\b|\b[Ii]nvalid\b")
_NOISE_LINE = re.compile(
    r"WARNING:|\s*at |\s*\.\.\. \d+ more|.*\bWARN\b|Using Spark's default|Setting default log|To adjust logging|"
    r"Picked up |Welcome to|Using Scala|Branch |Compiled by|Revision |Url |Type --help|An error occurred while calling|"
    r"[\s_/\\.,'`-]*(version [\d.]+\S*)?[\s_/\\.,'`-]*$"
)
