"""Count the instructions of the server for the transactions of a short conversation (decision 500).

    python tools/instructions.py

Times say little on a machine that others load; instructions are the same in each run, to one percent. PostgreSQL runs
in single-user mode under callgrind (of valgrind), once for each step, with 100 conversations more each time. What the
kernel and the network do is not counted, nor COMMIT.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import servicebroker as sb
from servicebroker.api.database import Database
from servicebroker.engine.conversation import enqueue
from servicebroker.store.cluster import SUPERUSER, programs

COUNTED_CONVERSATIONS = 100  # that a step is counted with
WARMUP_CONVERSATIONS = 30  # conversations before, for plans and caches
BODY = b"x" * 200
SETUP = """
CREATE MESSAGE TYPE M VALIDATION = NONE;
CREATE CONTRACT C (M SENT BY ANY);
CREATE QUEUE Q;
CREATE QUEUE P;
CREATE SERVICE S ON QUEUE Q (C);
CREATE SERVICE I ON QUEUE P;
"""
LOOP = (
    "do $$ declare handle_ uuid; group_ uuid; now_ timestamptz := now(); r record; "
    "begin for i in 1..{many} loop {body} end loop; end $$;\n\n"
)
TAKE = (
    "handle_ := null; for r in select * from servicebroker.receive_{queue}({top}, now_, null, null) loop "
    "handle_ := encode(r.conversation_handle, 'hex')::uuid; end loop; "
)


def main() -> None:
    """Print the instructions of each step, for one conversation."""
    if shutil.which("valgrind") is None:
        sys.exit("This needs valgrind.")
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)  # the server may run as another user
        with sb.open(f"{folder}/instance") as instance:
            database = instance.database("Test", create=True)
            database.execute_tsql(SETUP)
            for _ in range(3):
                converse(database)
            steps = statements(database)
        before = 0
        for many in range(len(steps) + 1):
            counted = count(Path(folder), script(list(steps.values()), many))
            if many:
                print(f"{(counted - before) / COUNTED_CONVERSATIONS / 1000:7,.0f} thousand  {list(steps)[many - 1]}")
            before = counted


def converse(database: Database) -> None:
    """Ask, answer and end, take the answer and end: then the process remembers the delivery paths."""
    with database.transaction() as transaction:
        handle = transaction.begin_dialog("I", "S", contract="C", encryption=False)
        transaction.send(handle, "M", BODY)
    with database.transaction() as transaction:
        (message,) = transaction.receive("Q")
        transaction.send(message.conversation_handle, "M", BODY)
        transaction.end_conversation(message.conversation_handle)
    with database.transaction() as transaction:
        *_, message = transaction.receive("P", top=2)
        transaction.end_conversation(message.conversation_handle)


def statements(database: Database) -> dict[str, str]:
    """Return the statements of each transaction, in PL/pgSQL, by what it does."""
    catalog = database.engine.catalog
    path = catalog.paths.find(database.engine.user.database_id, "I", "S", "C", None)
    assert path is not None
    far, own = path.target.queue_id, path.own.queue_id
    kind, answer = next((kind, found) for kind, found in catalog.answer_paths.items() if not found.channel.is_initiator)
    message = (str(path.target.far["M"].message_type_id), "'N'", f"'\\x{BODY.hex()}'")
    begin = filled(
        enqueue.begin_and_send(far),
        [*map(literal, path.parameters), "handle_", "group_", "'2094-01-01'", "false", "null", *message],
    )
    known = [str(answer.channel.catalog_version), *map(literal, kind), "false"]
    peer = [str(answer.peer_service_id), str(answer.peer_contract_id)]
    send = filled(enqueue.send_answer(own), ["handle_", *message, "now_", *known, *peer])
    ends = ["handle_", "now_", "null"]
    draw = "handle_ := gen_random_uuid(); group_ := gen_random_uuid(); "
    return {
        "BEGIN DIALOG, SEND": draw + run(begin),
        "RECEIVE, SEND, END CONVERSATION": TAKE.format(queue=far, top=1)
        + run(send)
        + run(filled(enqueue.end_dialog(far, own), ends)),
        "RECEIVE TOP (2), END CONVERSATION": TAKE.format(queue=own, top=2)
        + run(filled(enqueue.end_dialog(own, 0), ends)),
    }


def filled(sql: str, values: list[str]) -> str:
    """Return the statement with these texts for $1, $2, ..."""
    return re.sub(r"\$(\d+)", lambda place: values[int(place[1]) - 1], sql)


def literal(value: object) -> str:
    """Return a value as SQL."""
    if isinstance(value, bool | int):
        return str(value).lower()
    return "'" + str(value).replace("'", "''") + "'"


def run(sql: str) -> str:
    """Return a loop over the rows of the statement, which runs it."""
    return f"for r in {sql} loop null; end loop; "


def script(steps: list[str], many: int) -> str:
    """Return the script that warms all steps and runs the first `many` of them."""
    warm = [LOOP.format(many=WARMUP_CONVERSATIONS, body=step) for step in steps]
    counted = [LOOP.format(many=COUNTED_CONVERSATIONS, body=step) for step in steps[:many]]
    return "set plan_cache_mode = force_generic_plan;\n\n" + "".join(warm + counted)


def count(folder: Path, script: str) -> int:
    """Run the script on a copy of the server's data, and return its instructions.

    Raises:
        RuntimeError: a statement failed.
    """
    copy = folder / "copy"
    shutil.rmtree(copy, ignore_errors=True)
    data = folder / "instance" / "postgresql"
    subprocess.run(["cp", "-a", str(data), str(copy)], check=True)
    owner = data.stat().st_uid if os.getuid() == 0 else None  # PostgreSQL refuses to run as root
    (copy / "postmaster.pid").unlink(missing_ok=True)
    counter = ["valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null"]
    settings = ["-c", "fsync=off", "-c", "full_page_writes=off", "-c", "jit=off"]
    server = [str(programs() / "postgres"), "--single", "-j", "-D", str(copy), *settings, SUPERUSER]
    result = subprocess.run([*counter, *server], input=script, capture_output=True, text=True, user=owner, cwd="/")
    found = re.search(r"refs: +([\d,]+)", result.stderr)
    if found is None or "ERROR" in result.stderr:
        raise RuntimeError(result.stderr)
    return int(found[1].replace(",", ""))


if __name__ == "__main__":
    main()
