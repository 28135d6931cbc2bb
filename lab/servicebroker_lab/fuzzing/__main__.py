"""Run the fuzzer from the command line."""

from servicebroker.cli.main import run_alone
from servicebroker_lab.fuzzing.command import fuzz_command

if __name__ == "__main__":  # not in the processes that it starts
    run_alone(fuzz_command)
