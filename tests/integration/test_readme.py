"""What the documentation shows, runs as printed."""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def python_blocks(page: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), flags=re.DOTALL)


def run(program: str, folder: Path) -> str:
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=folder, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_example_of_the_readme_runs_as_printed(tmp_path: Path) -> None:
    (program,) = python_blocks("README.md")
    assert len([line for line in program.splitlines() if line]) <= 23
    assert run(program, tmp_path) == "b'one teapot'\n"


def test_the_tutorial_runs_from_top_to_bottom(tmp_path: Path) -> None:
    said = run("\n".join(python_blocks("docs/tutorial/first-conversation.md")), tmp_path)
    assert said.splitlines() == [
        "//shop/Order b'teapot'",
        "//shop/Confirmation b'<confirmation/>'",
        "http://schemas.microsoft.com/SQL/ServiceBroker/EndDialog None",
    ]


def test_the_example_without_postgresql_runs_as_printed(tmp_path: Path) -> None:
    (program,) = python_blocks("docs/how-to/testing.md")
    assert run(program, tmp_path).splitlines() == ["[b'one teapot', None]", "['CD']", "[]"]
