"""examples/declarative runs with one command, if Spark's declarative pipelines are installed."""

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("pyspark")

pytestmark = [pytest.mark.spark, pytest.mark.slow]

EXAMPLE = Path(__file__).parents[3] / "examples/declarative/run.py"


@pytest.mark.full
def test_a_queue_is_a_streaming_table_of_a_declarative_pipeline() -> None:
    result = subprocess.run([sys.executable, str(EXAMPLE)], capture_output=True, text=True, timeout=500, check=False)
    if "This example needs" in result.stderr:
        assert result.returncode == 1
        pytest.skip(result.stderr.strip())
    assert result.returncode == 0, result.stderr[-3000:]
    assert result.stdout.splitlines()[-3:] == ["messages: 102 rows", "orders: 100 rows", "customers: 3 rows"]
