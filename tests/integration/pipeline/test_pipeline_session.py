"""Finding Java, and a session that says nothing."""

import os
import socket
import subprocess
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest

pytest.importorskip("pyspark")

from servicebroker.model.errors import InstanceError
from servicebroker.pipeline import spark_session as spark_session_module
from servicebroker.pipeline.spark_session import check_java, check_modules, check_settings


def test_spark_connect_is_refused_with_a_remedy(monkeypatch):
    monkeypatch.setenv("SPARK_REMOTE", "sc://elsewhere")
    with pytest.raises(InstanceError, match="A pipeline cannot run over Spark Connect"):
        spark_session_module.spark_session("orders")


def test_a_driver_that_only_a_task_imports_is_missed_by_name(monkeypatch):
    check_modules("delta")
    monkeypatch.setattr(spark_session_module, "find_spec", lambda name: None if name.startswith("adbc") else name)
    with pytest.raises(
        InstanceError, match=r"adbc_driver_postgresql is not installed: pip install 'servicebroker\[spark"
    ):
        check_modules("delta")


def java_that_says(folder, text):
    program = folder / "bin" / "java"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\necho '{text}' >&2\n")
    program.chmod(0o755)


@pytest.mark.parametrize(("text", "version"), [('openjdk version "11.0.2"', 11), ('java version "1.8.0_1"', 8)])
def test_an_old_java_is_named(monkeypatch, tmp_path, text, version):
    java_that_says(tmp_path, text)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(InstanceError, match=f"is Java {version}. Spark needs Java 17 or newer: install it"):
        check_java()


@pytest.mark.parametrize("text", ['openjdk version "17" 2021-09-14', 'openjdk version "25.0.1"'])
def test_a_new_java_is_taken(monkeypatch, tmp_path, text):
    java_that_says(tmp_path, text)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    check_java()


def test_a_setting_without_effect_is_refused(monkeypatch):
    check_settings({})
    monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "1")  # as spark-submit sets it
    with pytest.raises(InstanceError, match=r"'spark\.x' has no effect: give it to spark-submit"):
        check_settings({"spark.x": "1"})


def test_the_fork_server_has_our_modules_and_one_thread():
    module = "servicebroker.pipeline.workers.worker_daemon"
    look = f"import os, sys, {module}; print(len(os.listdir('/proc/self/task')), *sys.modules)"
    said = subprocess.run([sys.executable, "-c", look], capture_output=True, text=True, check=True).stdout.split()
    assert said[0] == "1"
    assert {
        "servicebroker.pipeline.stream.reader",
        "servicebroker.pipeline.sending",
        "servicebroker.pipeline.sinks.warehouse",
        "psycopg",
    } <= set(said)
    assert not {"pyarrow", "deltalake"} & set(said)


def test_a_process_that_plans_a_query_connects_before_it_imports_pyspark(tmp_path):
    """Java gives it ten seconds to connect, and puts PySpark's archives first, in which nothing is compiled."""
    runner = tmp_path / "pyspark" / "sql" / "streaming"
    runner.mkdir(parents=True)
    for folder in (runner.parent.parent, runner.parent, runner):
        (folder / "__init__.py").touch()
    (tmp_path / "pyspark" / "worker_util.py").write_text("import sys\nsys.stdin.readline()\n")
    (runner / "python_streaming_source_runner.py").write_text(
        "import sys\nfrom pyspark.worker_util import get_sock_file_to_executor\n"
        "with get_sock_file_to_executor(timeout=None) as java: java.write(repr(sys.path).encode())\n"
    )
    with socket.create_server(("127.0.0.1", 0)) as server:
        environment = os.environ | {
            "PYTHONPATH": f"/x/pyspark.zip:/x/py4j-1-src.zip:{tmp_path}",
            "PYTHON_WORKER_FACTORY_PORT": str(server.getsockname()[1]),
            "PYTHON_WORKER_FACTORY_SECRET": "secret",
            "SERVICEBROKER_WORKER_PYTHON": sys.executable,
        }
        command = [
            spark_session_module._WORKER_SCRIPT,
            *("-m", "pyspark.sql.streaming.python_streaming_source_runner"),
        ]
        with subprocess.Popen(command, env=environment, stdin=subprocess.PIPE) as worker:
            server.settimeout(30)
            connection, _ = server.accept()
            with connection, connection.makefile("rwb") as java:
                assert java.read(10) == b"\0\0\0\6secret"
                java.write(b"\0\0\0\2ok")
                java.flush()
                assert int.from_bytes(java.read(4), "big") == worker.pid
                worker.communicate(b"import now\n", timeout=30)
                path = java.read().decode()
    assert (worker.returncode, str(tmp_path) in path, str(Path.cwd()) in path) == (0, True, True)
    assert "pyspark.zip" not in path
    assert "py4j" not in path


def test_a_pyspark_that_is_only_in_archives_keeps_them_on_the_path(monkeypatch):
    monkeypatch.setenv("SERVICEBROKER_WORKER_PYTHON", "")
    assert spark_session_module._worker_python(is_local=True) == spark_session_module._WORKER_SCRIPT
    archived = ModuleSpec("py4j", None, origin="/opt/spark/python/lib/py4j-0-src.zip/py4j/__init__.py")
    monkeypatch.setattr(spark_session_module, "find_spec", lambda name: archived if name == "py4j" else None)
    assert spark_session_module._worker_python(is_local=True) == sys.executable


def test_naming_a_data_source_loads_no_driver():
    """Spark starts a process each time it asks."""
    modules = ", ".join(
        f"servicebroker.pipeline.{name}" for name in ("source", "writer", "sinks.delta", "sinks.warehouse")
    )
    look = f"import sys, {modules}; print(*sys.modules)"
    said = subprocess.run([sys.executable, "-c", look], capture_output=True, text=True, check=True).stdout.split()
    assert "servicebroker.pipeline.staging" in said
    assert not {"psycopg", "pyarrow", "servicebroker.engine.catalog.catalog", "http.client"} & set(said)


def test_no_java_is_one_sentence(monkeypatch, tmp_path):
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(InstanceError, match=r"No Java was found\. Spark needs Java 17"):
        check_java()


def runs_in_silence(script, folder):
    result = subprocess.run(
        [sys.executable, "-W", "error", "-c", script], cwd=folder, capture_output=True, text=True, timeout=500
    )
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")


@pytest.mark.full
@pytest.mark.spark
def test_a_session_says_nothing_and_leaves_nothing(tmp_path):
    script = (
        "import os\n"
        "from servicebroker.pipeline.spark_session import is_running, spark_session\n"
        "_, lock = os.pipe()\n"
        "session = spark_session('quiet', cores=1, inherited=[lock])\n"
        "java = session.sparkContext._gateway.proc.pid\n"
        "assert os.readlink(f'/proc/{java}/fd/{lock}') == os.readlink(f'/proc/self/fd/{lock}')\n"
        "assert session.range(3).count() == 3\n"
        "session.stop()\n"
        "assert not is_running()\n"
        "from threading import Thread\n"
        "made = []\n"
        "thread = Thread(target=lambda: made.append(spark_session('again', cores=1)))\n"
        "thread.start(); thread.join()\n"
        "assert is_running() and spark_session('the same', cores=1) is made[0]\n"
        "assert made[0].range(4).count() == 4\n"
    )
    runs_in_silence(script, tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.full
@pytest.mark.spark
def test_each_registration_has_a_map_of_its_own(tmp_path):
    """Spark writes into that of a query as it starts (decision 96)."""
    script = (
        "from servicebroker.pipeline.spark_session import register_formats, spark_session\n"
        "session = spark_session('registered', cores=1)\n"
        "formats = session._jsparkSession.sessionState().dataSourceManager()\n"
        "def environment(): return formats.lookupDataSource('servicebroker').dataSourceCls().envVars()\n"
        "first = environment()\n"
        "first.put('said', 'yes')\n"
        "assert environment().get('said') == 'yes'\n"
        "register_formats(session)\n"
        "assert environment().get('said') is None\n"
    )
    runs_in_silence(script, tmp_path)


def a_java_error(text):
    return type("Py4JJavaError", (Exception,), {})(text)


BANNER = """WARNING: Using incubator modules: jdk.incubator.vector
Using Spark's default log4j profile: org/apache/spark/log4j2-defaults.properties
      ____              __
     / __/__  ___ _____/ /__
    _\\ \\/ _ \\/ _ `/ __/  '_/
   /___/ .__/\\_,_/_/ /_/\\_\\   version 4.3.0
      /_/

Using Scala version 2.13.17, OpenJDK 64-Bit Server VM, 17.0.15
Branch HEAD
Type --help for more information.
"""


@pytest.mark.parametrize(
    ("problem", "expected_text", "why"),
    [
        (OSError("exited"), BANNER + "Invalid maximum heap size: -Xmx1q\n", "Invalid maximum heap size: -Xmx1q"),
        (OSError("exited"), BANNER, "exited"),
        (OSError("exited"), BANNER + "no space left\n", "no space left"),
        (
            OSError("exited"),
            'Exception in thread "main" org.apache.spark.SparkException: Master must be one of ...\n\tat x.y(Z:1)\n',
            'Exception in thread "main" org.apache.spark.SparkException: Master must be one of ...',
        ),
        (
            a_java_error(
                "An error occurred while calling None.org.apache.spark.api.java.JavaSparkContext.\n"
                ": org.apache.spark.SparkException: Could not parse Master URL: 'mars'\n\tat a.b(C:1)\n"
            ),
            BANNER + "10:00:00 ERROR SparkContext: Error initializing SparkContext.\n",
            "org.apache.spark.SparkException: Could not parse Master URL: 'mars'",
        ),
        (
            a_java_error(
                ": org.apache.spark.SparkException: outer\n\tat a\nCaused by: java.io.IOException: No route\n"
            ),
            "",
            "java.io.IOException: No route",
        ),
    ],
)
def test_why_spark_does_not_start_is_no_banner(problem, expected_text, why):
    assert spark_session_module._start_error(problem, expected_text) == why
