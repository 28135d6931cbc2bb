"""Run mutation tests from the command line."""

from servicebroker.cli.main import run_alone
from servicebroker_lab.mutation.command import mutants_command

if __name__ == "__main__":
    run_alone(mutants_command)
