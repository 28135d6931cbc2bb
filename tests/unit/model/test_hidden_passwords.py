"""Error texts hide passwords in mistyped URLs."""

from __future__ import annotations

import pytest

from servicebroker.model.errors import ServiceBrokerError
from servicebroker.model.hidden_passwords import without_password, without_quoted_secrets
from servicebroker.store.connection import connect, is_url
from servicebroker.store.embedded import EmbeddedServer

SECRET = "tops3cret"


@pytest.mark.parametrize(
    "target",
    [
        "postgresql://app:50%tops3cret@shop/app",
        "postgresql://app:my tops3cret@shop/app",
        "postgresql://app:tops3cret%00@shop/app",
        "postgresql://app@shop/app?password=a&tops3cret",
        "host=shop password=my tops3cret",
        "mysql://app:p@tops3cret@shop/app",
        "http://app:a:tops3cret@shop/app",
        "jdbc:postgresql://shop/app?user=app&password=tops3cret",
        "app:tops3cret@shop:5432/app",
        " postgresql://app:tops3cret@shop/app",
        "'postgresql://app:tops3cret@shop/app'",
        "shop:5432 password=tops3cret",
        "host:shop password:tops3cret",
        "postgresql://app:tops3cret\0@shop/app",
    ],
)
def test_a_mistyped_url_does_not_show_its_password(target: str) -> None:
    with pytest.raises(ServiceBrokerError) as refusal:
        connect(target) if is_url(target) else EmbeddedServer.join(target)
    assert SECRET not in str(refusal.value)


def test_the_rest_of_a_url_is_shown() -> None:
    assert without_password("postgresql://app:x@shop:5432/app") == "postgresql://app:...@shop:5432/app"
    assert without_password("/srv/data") == "/srv/data"
    problem = 'invalid connection option "sslmod"'
    assert without_quoted_secrets(problem, "host=shop password=x sslmod=require") == problem
    problem = "failed to resolve host 'word@shop': Name or service not known"
    assert "word" not in without_quoted_secrets(problem, "postgresql://app:pass@word@shop/app")
    problem = 'connection to server at "shop" failed'
    assert without_quoted_secrets(problem, "postgresql://app:x@shop/app") == problem


def test_a_path_that_is_too_long_is_one_sentence() -> None:
    with pytest.raises(ServiceBrokerError, match=r"The data folder 'xxx.*…' cannot be used: File name too long"):
        EmbeddedServer.join("x" * 5000)
