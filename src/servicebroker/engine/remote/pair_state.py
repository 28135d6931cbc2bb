"""What the server of an instance is: the principal or the mirror of a pair, as the brokers that ask are told."""

from __future__ import annotations

from servicebroker.protocol.mirroring import Role, Standing
from servicebroker.store.statements import Statement, Steps


def find_standing() -> Steps[Standing]:
    """Whether the server is a standby, on which timeline it is, and whether its commits wait for a standby.

    A server that is no standby is the principal once a `proof` has been committed, not before.
    """
    rows = yield Statement(
        "pair_state.find_standing",
        "select pg_is_in_recovery(), system_identifier::text, case when pg_is_in_recovery() "
        "then greatest((select timeline_id from pg_control_checkpoint()), "
        "(select min_recovery_end_timeline from pg_control_recovery()))::bigint "
        "else ('x' || left(pg_walfile_name(pg_current_wal_lsn()), 8))::bit(32)::bigint end, "
        "current_setting('synchronous_standby_names') <> '' "
        "and current_setting('synchronous_commit') in ('on', 'remote_apply') from pg_control_system()",
    )
    is_standby, system, timeline, is_guarded = rows[0]
    return Standing(Role.MIRROR if is_standby else Role.PRINCIPAL, system, timeline, is_guarded)


def proof() -> Steps[None]:
    """A commit that is written down, and waits for the synchronous standby where there is one.

    With it the standby has all that was committed here before, also what this server alone had when it went down.
    """
    yield Statement("pair_state.proof", "select pg_logical_emit_message(true, 'servicebroker', 'principal')")
