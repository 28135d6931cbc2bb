"""A fixture for the tests of T-SQL: an empty database."""

from __future__ import annotations

import pytest

import servicebroker as sb


@pytest.fixture(scope="module")
def db(instance: sb.Instance) -> sb.Database:
    """The database of the tests of a module."""
    return instance.database("Db", create=True)
