"""Unsupported system procedures, each with advice. They are refused by name, in a run and by `tsql check`."""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

from servicebroker.tsql.interpreter.calls import SYSTEM_PROCEDURES
from servicebroker.tsql.interpreter.static_checks import CALL_CHECKS
from servicebroker.tsql.statement_errors import unsupported
from servicebroker.tsql.syntax import Execute

if TYPE_CHECKING:
    from servicebroker.tsql.interpreter.machine import Machine

_JOB_ADVICE = "Use a conversation timer, or the scheduler of the operating system."
_MAIL_ADVICE = "Send mail from the program that receives the messages."
_SERVER_ADVICE = "Use a conversation to reach another instance, or a foreign table of PostgreSQL."
_FILE_ADVICE = "PostgreSQL keeps its files itself: see the page on backups."
_PRINCIPAL_ADVICE = "Use CREATE LOGIN, CREATE USER, CREATE ROLE and GRANT."
_SHELL_ADVICE = "Do this in the program that receives the messages."
_VIEW_ADVICE = "Ask the catalog views, or servicebroker status."
_POSTGRES_ADVICE = "Look for a counterpart in PostgreSQL."
ADVICE = {
    **dict.fromkeys(
        ("sp_add_job", "sp_add_jobschedule", "sp_add_jobserver", "sp_add_jobstep", "sp_delete_job"), _JOB_ADVICE
    ),
    **dict.fromkeys(("sp_start_job", "sp_stop_job", "sp_help_job", "sp_update_job", "sp_add_schedule"), _JOB_ADVICE),
    **dict.fromkeys(("sp_add_category", "sp_add_operator", "sp_add_alert", "sp_add_notification"), _JOB_ADVICE),
    **dict.fromkeys(
        ("sp_attach_schedule", "sp_delete_schedule", "sp_delete_jobstep", "sp_update_jobstep"), _JOB_ADVICE
    ),
    **dict.fromkeys(
        ("sp_help_jobactivity", "sp_help_jobhistory", "sp_help_schedule", "sp_purge_jobhistory"), _JOB_ADVICE
    ),
    **dict.fromkeys(
        (
            *("sp_set_sqlagent_properties", "sp_update_alert", "sp_delete_alert", "sp_update_notification"),
            *("sp_update_operator", "sp_delete_operator", "sp_delete_category", "sp_update_schedule"),
            *("sp_detach_schedule", "sp_delete_jobschedule", "sp_update_jobschedule", "sp_delete_jobserver"),
            *("sp_help_jobstep", "sp_help_operator", "sp_help_alert", "sp_maintplan_delete_log", "sp_mssetalertinfo"),
            *("sp_add_proxy", "sp_grant_proxy_to_subsystem"),
        ),
        _JOB_ADVICE,
    ),
    **dict.fromkeys(
        (
            f"sysmail_{verb}_sp"
            for verb in (
                *("configure", "delete_account", "delete_profile", "delete_profileaccount", "update_account"),
                *("delete_principalprofile", "update_profile", "help_account", "help_profile", "delete_mailitems"),
            )
        ),
        _MAIL_ADVICE,
    ),
    **dict.fromkeys(
        (
            *("sp_delete_backuphistory", "sp_delete_database_backuphistory", "sp_estimate_data_compression_savings"),
            *("sp_create_removable", "sp_certify_removable"),
        ),
        _FILE_ADVICE,
    ),
    **dict.fromkeys(("sp_ms_marksystemobject", "sp_procoption", "sp_settriggerorder"), _POSTGRES_ADVICE),
    **dict.fromkeys(
        ("sysmail_help_status_sp", "sysmail_start_sp", "sysmail_stop_sp", "sysmail_help_queue_sp"), _MAIL_ADVICE
    ),
    **dict.fromkeys(("sysmail_add_profileaccount_sp", "sysmail_add_principalprofile_sp"), _MAIL_ADVICE),
    **dict.fromkeys(
        ("sp_send_dbmail", "xp_sendmail", "sysmail_add_account_sp", "sysmail_add_profile_sp"), _MAIL_ADVICE
    ),
    **dict.fromkeys(
        ("sp_addlinkedserver", "sp_addlinkedsrvlogin", "sp_dropserver", "sp_linkedservers"), _SERVER_ADVICE
    ),
    **dict.fromkeys(("sp_serveroption", "sp_addserver", "sp_testlinkedserver"), _SERVER_ADVICE),
    **dict.fromkeys(("sp_attach_db", "sp_attach_single_file_db", "sp_detach_db", "sp_renamedb"), _FILE_ADVICE),
    **dict.fromkeys(("sp_helpfile", "sp_helpfilegroup", "sp_clean_db_free_space"), _FILE_ADVICE),
    **dict.fromkeys(
        ("sp_addlogin", "sp_droplogin", "sp_adduser", "sp_dropuser", "sp_addrole", "sp_droprole"), _PRINCIPAL_ADVICE
    ),
    **dict.fromkeys(("sp_grantdbaccess", "sp_revokedbaccess", "sp_grantlogin", "sp_revokelogin"), _PRINCIPAL_ADVICE),
    **dict.fromkeys(("sp_addsrvrolemember", "sp_dropsrvrolemember", "sp_change_users_login"), _PRINCIPAL_ADVICE),
    **dict.fromkeys(("sp_password", "sp_defaultdb", "sp_addapprole", "sp_setapprole"), _PRINCIPAL_ADVICE),
    **dict.fromkeys(
        ("xp_cmdshell", "xp_regread", "xp_regwrite", "xp_fileexist", "xp_dirtree", "xp_logevent"), _SHELL_ADVICE
    ),
    **dict.fromkeys(
        ("xp_instance_regread", "xp_instance_regwrite", "xp_fixeddrives", "xp_servicecontrol"), _SHELL_ADVICE
    ),
    **dict.fromkeys(("xp_create_subdir", "xp_delete_file", "xp_subdirs", "xp_enumgroups"), _SHELL_ADVICE),
    **dict.fromkeys(("sp_oacreate", "sp_oamethod", "sp_oadestroy", "sp_execute_external_script"), _SHELL_ADVICE),
    **dict.fromkeys(
        ("xp_msver", "xp_readerrorlog", "xp_enumerrorlogs", "xp_logininfo", "sp_helpextendedproc"), _VIEW_ADVICE
    ),
    **dict.fromkeys(
        ("sp_cycle_errorlog", "sp_cycle_agent_errorlog", "sp_helpsrvrolemember", "sp_helpserver"), _VIEW_ADVICE
    ),
    **dict.fromkeys(("sp_monitor", "sp_depends"), _VIEW_ADVICE),
    **dict.fromkeys(
        ("sp_helpuser", "sp_helplogins", "sp_helprole", "sp_helprolemember", "sp_helprotect"), _VIEW_ADVICE
    ),
    **dict.fromkeys(("sp_stored_procedures", "sp_statistics", "sp_pkeys", "sp_fkeys", "sp_readerrorlog"), _VIEW_ADVICE),
    **dict.fromkeys(("sp_bindefault", "sp_unbindefault", "sp_bindrule", "sp_unbindrule"), "Use constraints."),
    **dict.fromkeys(("sp_addtype", "sp_droptype"), "Use CREATE TYPE and DROP TYPE."),
    **dict.fromkeys(("sp_trace_create", "sp_trace_setevent", "sp_trace_setstatus"), "Use servicebroker trail."),
    **dict.fromkeys(("sp_fulltext_catalog", "sp_fulltext_table", "sp_tableoption", "sp_indexoption"), _POSTGRES_ADVICE),
    **dict.fromkeys(("sp_prepare", "sp_execute", "sp_unprepare", "sp_cursoropen"), "Use sp_executesql."),
    **dict.fromkeys(
        ("sp_replicationdboption", "sp_addpublication", "sp_cdc_enable_db", "sp_cdc_enable_table"), _POSTGRES_ADVICE
    ),
}


def _refuse_call(statement: Execute) -> NoReturn:
    name = str(statement.procedure).rpartition(".")[2]
    raise unsupported(f"EXEC {name}", ADVICE[name.lower()], statement.line)


def _refuse_run(machine: Machine, statement: Execute) -> NoReturn:
    _refuse_call(statement)


SYSTEM_PROCEDURES.update(dict.fromkeys(ADVICE, _refuse_run))
CALL_CHECKS.update(dict.fromkeys(ADVICE, _refuse_call))
