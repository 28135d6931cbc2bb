"""Run the fuzzer of scripts from the command line."""

from servicebroker.cli.main import run_alone
from servicebroker_lab.script_fuzzing.command import fuzz_scripts_command

if __name__ == "__main__":
    run_alone(fuzz_scripts_command)
