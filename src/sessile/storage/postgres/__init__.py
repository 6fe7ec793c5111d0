"""A store in PostgreSQL: its names, files, journals, catalog and the gateway's bindings as plain tables.

Only what CockroachDB and YugabyteDB speak too is used: no advisory locks, no notifications that anything relies on.
"""
