"""Run the upgrades from the command line."""

from servicebroker.cli.main import run_alone
from servicebroker_lab.upgrades.command import upgrades_command

if __name__ == "__main__":
    run_alone(upgrades_command)
