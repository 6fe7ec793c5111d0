"""A store in PostgreSQL: names, files, journals, catalog and the gateway's bindings as plain tables.

Only features that CockroachDB and YugabyteDB have too are used: no advisory locks, and nothing relies on notifications.
"""
