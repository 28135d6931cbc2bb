"""Fixtures of the pipeline's tests: a database with queues that a pipeline reads, a reader, Spark."""

import pytest

from pipeline_support import Feed, warehouse


@pytest.fixture(scope="module")
def database(instance):
    return warehouse(instance)


@pytest.fixture
def feed(database):
    return Feed(database)


@pytest.fixture
def reader(feed):
    """Reads the queue of the feed, as Spark drives it."""
    from pipeline_reading import attach

    reader = attach(feed)
    yield reader
    reader.stop()


@pytest.fixture(scope="module")
def spark():
    from servicebroker.pipeline.spark_session import spark_session

    session = spark_session("servicebroker tests", cores=2)
    yield session
    session.stop()
