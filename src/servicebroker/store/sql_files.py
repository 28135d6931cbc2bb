"""The static statements of a module: `routes.sql` beside `routes.py`, each under its name.

Text that depends on a queue or an option is made by a function of the module.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from servicebroker.store.statements import Statement

_NAME = re.compile(r"^-- name: ([\w.]+)\n", re.MULTILINE)


class SqlFile:
    """The statements of one file; `SQL = SqlFile(__file__)` in the module of its name.

    In the file a line `-- name: alter_route.find_routes` begins a statement. Other lines that begin with `--` are
    comments, and are left out.
    """

    def __init__(self, module: str) -> None:
        """Read the file beside the module of this path."""
        file = Path(module).with_suffix(".sql")
        self._texts = {name: (f"{file.stem}.{name}", sql) for name, sql in named(file.read_text()).items()}

    def __call__(
        self,
        name: str,
        parameters: tuple[object, ...] = (),
        *,
        prepared: bool = True,
        locks: bool = False,
        takes: bool = False,
        certain: str = "",
    ) -> Statement:
        """Return the statement of that name; the options are those of `Statement`."""
        whole, sql = self._texts[name]
        return Statement(whole, sql, parameters, prepared=prepared, locks=locks, takes=takes, certain=certain)


def named(text: str) -> Mapping[str, str]:
    """Return the parts of a file by their names, each in one line.

    Raises:
        ValueError: a name occurs twice.
    """
    return {name: _one_line(part) for name, part in named_parts(text).items()}


def named_parts(text: str) -> Mapping[str, str]:
    """Return the parts of a file by their names, as they are written.

    Raises:
        ValueError: a name occurs twice.
    """
    _, *pieces = _NAME.split(text)
    names, parts = pieces[::2], pieces[1::2]
    if len(set(names)) < len(names):
        raise ValueError(f"A name stands twice in {sorted(names)}.")
    return dict(zip(names, parts, strict=True))


def _one_line(sql: str) -> str:
    return " ".join(line.strip() for line in sql.splitlines() if line.strip() and not line.startswith("--"))
