"""Run benchmarks from the command line."""

from servicebroker.cli.main import run_alone
from servicebroker_lab.benchmarks.command import bench

if __name__ == "__main__":
    run_alone(bench)
