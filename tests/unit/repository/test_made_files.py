"""The blocking API is the output of tools/make_sync.py for the asyncio API."""

from __future__ import annotations

import subprocess
import sys

import pytest

import make_functions
import make_permissions
import make_pictures
import make_reference
import make_remedies
import make_sync


@pytest.mark.slow
def test_the_made_files_are_up_to_date() -> None:
    checked = subprocess.run([sys.executable, make_sync.__file__, "--check"], capture_output=True, text=True)
    assert checked.returncode == 0, f"run `make sync`:\n{checked.stdout}{checked.stderr}"


def test_the_page_of_permissions_is_up_to_date() -> None:
    written = make_permissions.PAGE.read_text()
    assert make_permissions.page(written) == written, "run python tools/make_permissions.py"


def test_the_page_of_functions_is_up_to_date() -> None:
    assert make_functions.PAGE.read_text() == make_functions.page(), "run python tools/make_functions.py"


def test_the_page_of_remedies_is_up_to_date() -> None:
    written = make_remedies.PAGE.read_text()
    assert make_remedies.page(written) == written, "run python tools/make_remedies.py"


def test_the_reference_is_up_to_date() -> None:
    assert make_reference.main(["--check"]) == 0, "run python tools/make_reference.py"


def test_the_pictures_are_up_to_date() -> None:
    assert make_pictures.main(["--check"]) == 0, "run python tools/make_pictures.py"


def test_every_asyncio_module_has_a_blocking_one() -> None:
    for source in make_sync.SOURCE.glob("*/aio/*.py"):
        assert (source.parent.parent / source.name).exists()


@pytest.mark.parametrize(
    ("asyncio_form", "blocking_form"),
    [
        ("async def f():\n    return await g(await h())\n", "def f():\n    return g(h())\n"),
        (
            "async with a() as b:\n    async for c in b:\n        pass\n",
            "with a() as b:\n    for c in b:\n        pass\n",
        ),
        ('await f("await async AsyncThing")  # await it\n', 'f("await async AsyncThing")  # await it\n'),
        (
            "def f(work: Callable[[], Awaitable[list[T]]]) -> None: ...\n",
            "def f(work: Callable[[], list[T]]) -> None: ...\n",
        ),
        ("await finish(self.close('ü', 1))\n", "self.close('ü', 1)\n"),
        ("'ü'; await finish(self.close())\n", "'ü'; self.close()\n"),
        ("class AsyncThing(AsyncBase):\n    x: _AsyncPart\n", "class Thing(Base):\n    x: _Part\n"),
        ("class A:\n    def __await__(self): ...\n    b = 1\n", "class A:\n    \n    b = 1\n"),
        ("if a:\n    from servicebroker.api.aio.x import AsyncX\n", "if a:\n    from servicebroker.api.x import X\n"),
        ("from servicebroker.store.aio import kept\n", "from servicebroker.store import kept\n"),
        ("async def __aenter__(self): ...\n", "def __enter__(self): ...\n"),
    ],
)
def test_blocking_code_is_made_from_asyncio_code(asyncio_form: str, blocking_form: str) -> None:
    assert make_sync.blocking(asyncio_form) == blocking_form
