"""Run the simulator from the command line."""

from servicebroker.cli.main import run_alone
from servicebroker_lab.simulation.command import simulate_command

if __name__ == "__main__":  # not in the processes that it starts
    run_alone(simulate_command)
