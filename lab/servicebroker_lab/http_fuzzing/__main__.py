"""Run the fuzzer from the command line."""

from servicebroker.cli.main import run_alone
from servicebroker_lab.http_fuzzing.command import fuzz_http_command

if __name__ == "__main__":
    run_alone(fuzz_http_command)
