"""The calls of a warm SEND: the number of functions of the product and of their files, from Python and from T-SQL.

`python tools/calls.py` prints both; `--list` prints each file with its calls, too.
"""

from __future__ import annotations

import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import FrameType

import servicebroker as sb

WARMUP_SENDS = 20  # SENDs before the one that is counted
PACKAGE = str(Path(sb.__file__).parent)
SETUP = """
CREATE MESSAGE TYPE M VALIDATION = NONE;
CREATE CONTRACT C (M SENT BY INITIATOR);
CREATE QUEUE Q;
CREATE SERVICE S ON QUEUE Q (C);
"""
SEND = "SEND ON CONVERSATION @handle MESSAGE TYPE M (0x313233);"


def counted(work: Callable[[], object]) -> Counter[str]:
    """The calls of the product's functions that `work` makes in this thread, by their file."""
    calls: Counter[str] = Counter()

    def note(frame: FrameType, event: str, _argument: object) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(PACKAGE):
            calls[frame.f_code.co_filename.removeprefix(f"{PACKAGE}/")] += 1

    for _ in range(WARMUP_SENDS):
        work()
    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(None)
    return calls


def main(arguments: list[str]) -> None:
    """Print how many."""
    with tempfile.TemporaryDirectory() as folder, sb.open(folder) as instance:
        database = instance.database("Test", create=True)
        database.execute_tsql(SETUP)
        handle = database.begin_dialog("S", "S", contract="C", encryption=False)
        with database.tsql_session() as session:
            measured = {
                "db.send": counted(lambda: database.send(handle, "M", b"123")),
                "T-SQL SEND": counted(lambda: session.execute(SEND, {"handle": handle})),
            }
    for name, calls in measured.items():
        print(f"{name}: {calls.total()} calls in {len(calls)} files")
        for file, count in calls.most_common() if "--list" in arguments else ():
            print(f"  {count:>3} {file}")


if __name__ == "__main__":
    main(sys.argv[1:])
