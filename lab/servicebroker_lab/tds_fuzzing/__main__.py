"""Run the fuzzer from the command line."""

from servicebroker.cli.main import run_alone
from servicebroker_lab.tds_fuzzing.command import fuzz_tds_command

if __name__ == "__main__":
    run_alone(fuzz_tds_command)
