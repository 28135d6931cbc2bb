"""A domain and its members: who gets a certificate, who is refused, and what happens without a renewal."""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import UUID, uuid4

import pytest

from servicebroker.model.errors import DomainError, InstanceError
from servicebroker.model.security.domain import Token
from servicebroker.store.keys import domain_certificates
from servicebroker.store.keys.domain_folder import Domain, Request, own_name
from servicebroker.store.keys.key_files import KeyFolder
from servicebroker.store.keys.sealing import KEY_BYTES, seal, unseal
from servicebroker.store.membership import Membership, MemberState, default_folder, is_in_domain

NOW = datetime(2030, 1, 1, 12, tzinfo=UTC)
DAY = timedelta(days=1)
Make = Callable[[str], Membership]


@pytest.fixture(autouse=True)
def own_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))


@pytest.fixture
def corp(tmp_path: Path) -> Domain:
    return Domain.create(tmp_path / "corp", "CORP", NOW)


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """Return a function that creates the membership of an instance, by the name of its key folder."""
    identifiers: dict[str, UUID] = {}

    def make(name: str) -> Membership:
        return Membership(KeyFolder(tmp_path / name), identifiers.setdefault(name, uuid4()))

    return make


class LockedKey:
    """Context manager: the domain's key belongs to another user meanwhile."""

    def __init__(self, domain: Domain) -> None:
        self.key, self.hidden = domain.folder / "authority.key", domain.folder.parent / "key elsewhere"

    def __enter__(self) -> None:
        self.key.rename(self.hidden)

    def __exit__(self, *_: object) -> None:
        self.hidden.rename(self.key)


def join(corp: Domain, membership: Membership, member: str = "shop", now: datetime = NOW) -> MemberState:
    return membership.join(corp.folder, corp.invite(member, now, DAY), now, 0)


def raises_domain_error(*words: str) -> pytest.RaisesExc[DomainError]:
    return pytest.raises(DomainError, match=".*".join(words))


# ---------------------------------------------------------------- one user


def test_instances_of_one_user_are_in_one_domain_without_asking(make: Make, tmp_path: Path) -> None:
    assert not is_in_domain(KeyFolder(tmp_path / "west"))
    west, east = make("west").look(NOW), make("east").look(NOW)
    assert west.authority == east.authority
    assert is_in_domain(KeyFolder(tmp_path / "west"))
    assert west.member is not None
    assert east.member is not None
    assert west.member.account == east.member.account == f"{west.domain}\\{own_name()}"
    assert west.member.instance != east.member.instance
    assert (west.problem, east.problem) == ("", "")
    folder = default_folder()
    assert folder.stat().st_mode & 0o777 == 0o700
    assert (folder / "authority.key").stat().st_mode & 0o777 == 0o600
    assert west.identity is not None
    assert west.identity.stat().st_mode & 0o777 == 0o600


def test_a_certificate_lives_seven_days_and_is_renewed_in_time(make: Make) -> None:
    membership = make("west")
    first = membership.look(NOW)
    assert first.facts is not None
    assert first.facts.expiry_date - NOW == timedelta(days=7)
    assert membership.look(NOW + 3 * DAY).facts == first.facts
    later = membership.look(NOW + 4 * DAY)
    assert later.facts is not None
    assert later.facts.expiry_date == NOW + 11 * DAY
    assert make("west").look(NOW + 30 * DAY).problem == ""  # the member was down, and has a new certificate now
    assert make("west").look(NOW - 30 * DAY).problem == ""  # a corrected clock does not stop it, either


def test_an_unchanged_membership_is_cached_for_ten_seconds(make: Make) -> None:
    membership = make("west")
    membership.look(NOW)
    assert membership.look(NOW) is membership.look(NOW + timedelta(seconds=9))
    assert membership.look(NOW) is not membership.look(NOW + timedelta(seconds=11))


# ---------------------------------------------------------------- invitations


def test_a_token_lets_one_instance_in_once(corp: Domain, make: Make) -> None:
    token = corp.invite("shop", NOW, DAY)
    standing = make("west").join(corp.folder, Token.read(str(token)), NOW, 0)
    assert standing.member is not None
    assert standing.member.account == "CORP\\shop"
    for name in ("west", "east"):
        with raises_domain_error("was used already"):
            make(name).join(corp.folder, token, NOW, 0)
    assert make("west").look(NOW) == standing
    assert {*corp.members()} == {"shop"}
    assert make("east").look(NOW).domain != "CORP"


def test_a_token_has_its_time(corp: Domain, make: Make) -> None:
    token = corp.invite("shop", NOW, DAY)
    with raises_domain_error("has expired on 2030-01-02 12:00 UTC"):
        make("west").join(corp.folder, token, NOW + DAY, 0)
    corp.invite("other", NOW + 60 * DAY, DAY)  # forgets the old invitation
    assert [guest.member for guest in corp.invitations()] == ["other"]


@pytest.mark.parametrize("text", ["", "nonsense", "00" * 47, "00" * 49, "zz" * 48])
def test_invalid_tokens_are_refused(text: str) -> None:
    with raises_domain_error("not a token"):
        Token.read(text)


def test_a_token_is_good_for_its_own_domain(corp: Domain, make: Make, tmp_path: Path) -> None:
    other_domain = Domain.create(tmp_path / "other", "CORP", NOW)
    with raises_domain_error("not one of the domain CORP"):
        make("west").join(other_domain.folder, corp.invite("shop", NOW, DAY), NOW, 0)


def test_a_token_with_another_secret_is_not_answered(corp: Domain, make: Make) -> None:
    token = corp.invite("shop", NOW, DAY)
    with LockedKey(corp), raises_domain_error("No answer came within 0 s"):
        make("west").join(corp.folder, token._replace(secret=bytes(24)), NOW, 0)
    assert corp.answer(NOW) == 1
    assert list((corp.folder / "answers").iterdir()) == []
    with raises_domain_error("No answer came"):
        make("east").join(corp.folder, token._replace(number=bytes(8)), NOW, 0)
    assert make("west").join(corp.folder, token, NOW, 0).problem == ""


def test_without_the_domains_key_a_token_is_needed(corp: Domain, make: Make) -> None:
    with LockedKey(corp):
        for what in (
            lambda: make("west").join(corp.folder, None, NOW, 0),
            lambda: corp.invite("shop", NOW, DAY),
            lambda: corp.revoke("shop", NOW),
        ):
            with raises_domain_error("not yours|Only the user who owns the key"):
                what()
    assert make("west").join(corp.folder, None, NOW, 0).problem == ""


def test_an_answer_that_comes_later_is_taken_with_the_same_token(corp: Domain, make: Make) -> None:
    token = corp.invite("shop", NOW, DAY)
    with LockedKey(corp), raises_domain_error("No answer came"):
        make("west").join(corp.folder, token, NOW, 0)
    corp.answer(NOW)
    with LockedKey(corp):
        assert make("west").join(corp.folder, token, NOW, 0).problem == ""


def test_an_instance_of_another_member_cannot_join(corp: Domain, make: Make, tmp_path: Path) -> None:
    west = make("west")
    join(corp, west)
    impostor = Membership(KeyFolder(tmp_path / "impostor"), west._instance)
    with raises_domain_error("is that of the member shop"):
        join(corp, impostor, "other")
    assert join(corp, impostor, "shop").problem == ""  # the same member, like the other half of a mirrored pair
    corp.revoke("shop", NOW)
    assert join(corp, impostor, "heir").problem == ""


# ---------------------------------------------------------------- renewal by another account


def test_a_members_renewal_is_answered_by_the_owner_of_the_key(corp: Domain, make: Make) -> None:
    west = make("west")
    first = join(corp, west)
    later = NOW + 4 * DAY
    with LockedKey(corp):
        asking = west.look(later)
        assert (asking.facts, asking.problem) == (first.facts, "")
        assert "has not renewed" in west.look(NOW + 6 * DAY).problem
        assert "and not now" in west.look(NOW + 8 * DAY).problem
        assert west.look(NOW + 8 * DAY).identity is None
    assert corp.answer(later) == 1
    with LockedKey(corp):
        renewed = west.look(later)
    assert renewed.facts is not None
    assert (renewed.facts.expiry_date, renewed.problem) == (later + timedelta(days=7), "")


def test_one_that_slept_for_long_is_renewed_when_it_comes_back(corp: Domain, make: Make) -> None:
    west = make("west")
    join(corp, west)
    with LockedKey(corp):
        assert west.look(NOW + 100 * DAY).identity is None
    corp.answer(NOW + 100 * DAY)
    with LockedKey(corp):
        assert west.look(NOW + 100 * DAY).identity is not None


def test_the_daemon_of_the_owner_answers_whenever_it_looks(corp: Domain, make: Make) -> None:
    owner, west = make("owner"), make("west")
    owner.join(corp.folder, None, NOW, 0)
    join(corp, west)
    with LockedKey(corp):
        west.look(NOW + 4 * DAY)
    owner.look(NOW + 4 * DAY)
    assert list((corp.folder / "requests").iterdir()) == []
    assert west.look(NOW + 4 * DAY).problem == ""


# ---------------------------------------------------------------- revoked


def test_a_revoked_member_is_renewed_no_more_and_known_to_all(corp: Domain, make: Make) -> None:
    west, east = make("west"), make("east")
    join(corp, west, "Shop")
    join(corp, east, "warehouse")
    corp.revoke("SHOP", NOW)
    assert east.look(NOW).revoked == {"shop"}
    gone = west.look(NOW)
    assert (gone.identity, "was revoked" in gone.problem) == (None, True)
    with LockedKey(corp):
        west.look(NOW + 4 * DAY)
    corp.answer(NOW + 4 * DAY)
    with LockedKey(corp):
        assert "was revoked" in west.look(NOW + 4 * DAY).problem
    with raises_domain_error("was revoked, and stays so"):
        corp.invite("shop", NOW, DAY)
    token = corp.invite("late", NOW, DAY)
    corp.revoke("late", NOW)
    with raises_domain_error("was revoked"):
        make("third").join(corp.folder, token, NOW, 0)


def test_revoking_needs_a_known_name_and_not_the_owner(corp: Domain, make: Make) -> None:
    with raises_domain_error("neither a member nor an invitation named shop"):
        corp.revoke("shop", NOW)
    make("west").join(corp.folder, None, NOW, 0)
    with raises_domain_error("create another domain"):
        corp.revoke(own_name().upper(), NOW)


def test_revoked_members_stay_known_while_the_folder_is_unreadable(corp: Domain, make: Make) -> None:
    west = make("west")
    join(corp, west)
    join(corp, make("east"), "warehouse")
    corp.revoke("warehouse", NOW)
    west.look(NOW)
    corp.folder.rename(corp.folder.parent / "unmounted")
    standing = make("west").look(NOW)
    assert standing.identity is not None
    assert standing.revoked == {"warehouse"}
    assert "There is no domain in" in standing.problem


# ---------------------------------------------------------------- files


def test_a_key_that_others_may_read_is_not_used(corp: Domain, make: Make) -> None:
    (corp.folder / "authority.key").chmod(0o640)
    for what in (lambda: corp.invite("shop", NOW, DAY), lambda: make("west").join(corp.folder, None, NOW, 0)):
        with pytest.raises((DomainError, InstanceError), match="chmod 600"):
            what()
    (corp.folder / "authority.key").chmod(0o600)
    west = make("west")
    standing = west.join(corp.folder, None, NOW, 0)
    assert standing.identity is not None
    standing.identity.chmod(0o644)
    with raises_domain_error("chmod 600"):
        west.look(NOW)


def test_a_domain_that_was_put_in_the_place_of_another_is_not_believed(corp: Domain, make: Make) -> None:
    west = make("west")
    join(corp, west)
    corp.folder.rename(corp.folder.parent / "old")
    Domain.create(corp.folder, "CORP", NOW)
    standing = west.look(NOW)
    assert "is another one than the instance has joined" in standing.problem
    assert standing.authority == corp.authority


def test_a_copy_of_an_instance_gets_a_certificate_of_its_own(make: Make, tmp_path: Path) -> None:
    first = make("west").look(NOW)
    copy = Membership(KeyFolder(tmp_path / "west"), uuid4()).look(NOW)
    assert first.member is not None
    assert copy.member is not None
    assert copy.member.instance != first.member.instance


def test_invalid_folders_and_names_of_domains_are_refused(corp: Domain, tmp_path: Path) -> None:
    with raises_domain_error("There is a domain in"):
        Domain.create(corp.folder, "CORP", NOW)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    with raises_domain_error("not empty"):
        Domain.create(tmp_path / "full", "CORP", NOW)
    with raises_domain_error("There is no domain in"):
        Domain(tmp_path / "full")
    for name in ("", "a b", "a\\b", "-a", "a" * 64):
        with raises_domain_error("name of a domain"):
            Domain.create(tmp_path / "new", name, NOW)
        with raises_domain_error("name of a member"):
            corp.invite(name, NOW, DAY)
    assert not (tmp_path / "new").exists()


def test_foreign_files_among_the_requests_do_no_harm(corp: Domain, make: Make) -> None:
    """Garbage files are deleted. Anything that is not a file stays and does no harm."""
    requests = corp.folder / "requests"
    (requests / "0.json").write_bytes(b"no request")
    (requests / "1.json").write_bytes(b"\0" * 200_000)
    (requests / "5.json").write_bytes(b'{"more": ' + b"[" * 60_000)
    (requests / "2.json").mkdir()
    (requests / "3.json").symlink_to(corp.folder / "authority.key")
    os.mkfifo(requests / "4.json")
    key = domain_certificates.new_key()
    asked = domain_certificates.request(key)
    other_authority = domain_certificates.make_authority("CORP", NOW)
    foreign = domain_certificates.issue(
        *other_authority,
        domain_certificates.public_bytes(key),
        make("x").look(NOW).member,
        NOW,  # type: ignore[arg-type]
    )
    for request in (
        Request(asked, uuid4()),
        Request(asked[:-1] + bytes([asked[-1] ^ 1]), uuid4()),
        Request(asked, uuid4(), invitation="../authority"),
        Request(asked, uuid4(), certificate=foreign.der),
    ):
        try:
            corp.ask(request)
        except DomainError:
            continue
        assert corp.answer(NOW) >= 1
    assert sorted(file.name for file in requests.iterdir()) == ["2.json", "3.json", "4.json"]
    assert list((corp.folder / "answers").iterdir()) == []
    assert join(corp, make("west")).problem == ""


# ---------------------------------------------------------------- what is read again, asked again and checked


def test_a_membership_is_read_again_after_the_clock_was_set_back(make: Make) -> None:
    membership = make("west")
    first = membership.look(NOW)
    assert membership.look(NOW - timedelta(seconds=1)) is not first


@pytest.mark.parametrize("problem", ["", "was revoked"])
def test_a_problem_is_not_cached(make: Make, monkeypatch: pytest.MonkeyPatch, problem: str) -> None:
    membership = make("west")
    state = membership.look(NOW)._replace(problem=problem)
    looks: list[datetime] = []

    def look(self: Membership, now: datetime) -> MemberState:
        looks.append(now)
        return state

    monkeypatch.setattr(Membership, "_look", look)
    for second in (20, 21, 22):
        assert membership.look(NOW + timedelta(seconds=second)) == state
    assert len(looks) == (3 if problem else 1)


def test_a_renewal_is_requested_once_a_minute(corp: Domain, make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    west = make("west")
    join(corp, west)
    asked: list[object] = []
    monkeypatch.setattr(Domain, "ask", lambda self, request: asked.append(request))
    counts = []
    with LockedKey(corp):
        for seconds in (0, 11, 59, 60, 71, 120, -3_600):  # the last: the clock was set back
            west._look(NOW + 4 * DAY + timedelta(seconds=seconds))
            counts.append(len(asked))
    assert counts == [1, 1, 1, 2, 2, 3, 4]


def test_an_answer_is_a_certificate_of_this_instance_and_key(corp: Domain, make: Make, tmp_path: Path) -> None:
    west = make("west")
    join(corp, west)
    key, other_key = domain_certificates.new_key(), domain_certificates.new_key()
    other = Domain.create(tmp_path / "other", "CORP", NOW)
    for domain, issued_key, instance, is_taken in (
        (corp, key, west._instance, True),
        (corp, key, uuid4(), False),
        (corp, other_key, west._instance, False),
        (other, key, west._instance, False),
    ):
        facts = domain.issue(domain_certificates.public_bytes(issued_key), "shop", instance, NOW)
        answer: Any = SimpleNamespace(certificate=facts.der)
        if is_taken:
            assert west._checked(corp, answer, key) == facts
        else:
            with raises_domain_error("is not a certificate of this instance"):
                west._checked(corp, answer, key)


@pytest.mark.parametrize(("key", "about", "is_open"), [(1, "a", True), (2, "a", False), (1, "b", False)])
def test_a_sealed_secret_is_bound_to_its_key_and_purpose(key: int, about: str, is_open: bool) -> None:
    sealed = seal(bytes([1]) * KEY_BYTES, b"secret", "a")
    assert unseal(bytes([key]) * KEY_BYTES, sealed, about) == (b"secret" if is_open else None)
    assert seal(bytes([1]) * KEY_BYTES, b"secret", "a") != sealed
    assert unseal(bytes([1]) * KEY_BYTES, sealed[:-1] + bytes([sealed[-1] ^ 1]), "a") is None
