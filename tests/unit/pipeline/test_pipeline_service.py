"""The systemd unit and the manifests of docs/how-to/pipeline-service.md, checked without a cluster."""

import configparser
import re
import shlex
from pathlib import Path

import pytest

from servicebroker.cli import shutdown
from servicebroker.cli.main import load

PAGE = (Path(__file__).parents[3] / "docs/how-to/pipeline-service.md").read_text(encoding="utf-8")
LONGEST = shutdown.SHUTDOWN_TIMEOUT_S + shutdown.KILL_DELAY_S  # seconds that a run may need to end


def blocks(kind):
    return re.findall(rf"```{kind}\n(.*?)```", PAGE, re.DOTALL)


def check_command(words):
    """Check that `servicebroker` accepts these arguments."""
    program, group, command, *rest = words
    assert program.endswith("servicebroker")
    group = load(group)
    context = group.make_context(group.name, [command, *rest])
    name, found, arguments = group.resolve_command(context, [command, *rest])
    found.make_context(name, arguments)


def test_the_unit():
    (text,) = blocks("ini")
    unit = configparser.ConfigParser(interpolation=None)
    unit.optionxform = str
    unit.read_string(text)
    service = unit["Service"]
    check_command(shlex.split(service["ExecStart"]))
    assert float(service["TimeoutStopSec"]) > LONGEST
    assert (service["Restart"], service["SuccessExitStatus"], service["KillMode"]) == ("always", "130", "mixed")


def test_the_manifests():
    yaml = pytest.importorskip("yaml")
    deployment, application = map(yaml.safe_load, blocks("yaml"))
    pod = deployment["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    check_command(container["command"] + container["args"])
    assert deployment["spec"]["replicas"] == 1
    assert deployment["spec"]["strategy"] == {"type": "Recreate"}
    assert pod["terminationGracePeriodSeconds"] > LONGEST
    spec = application["spec"]
    assert (spec["type"], spec["mode"], spec["restartPolicy"]["type"]) == ("Python", "cluster", "Always")
    volumes = {row["name"] for row in spec["volumes"]}
    for part in (spec["driver"], spec["executor"]):
        assert {row["name"] for row in part["volumeMounts"]} == volumes
