-- The statements of domain_state.py.

-- name: report_membership.delete_domain_membership
delete from servicebroker.domain_membership

-- name: report_membership.insert_domain_membership
insert into servicebroker.domain_membership values ($1, $2, $3, $4, $5)

-- name: find_membership
select account, thumbprint, start_date, expiry_date, problem from servicebroker.domain_membership
