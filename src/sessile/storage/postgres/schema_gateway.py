"""The tables of gateways that share a database: bindings of conversations, and turns that run or wait.

A lane is the order of turns in one session. `last` counts everybody who ever entered it, so that no number is given twice;
`running` is the turn that has it, and none exactly if nobody is in it. A turn of `place` less than others comes before them.
"""

from __future__ import annotations

TABLES: tuple[str, ...] = (
    "CREATE TABLE bindings (agent text PRIMARY KEY, revision bigint NOT NULL)",
    """
    CREATE TABLE binding (
        agent text NOT NULL,
        key bytea NOT NULL,
        body bytea,                    -- none: it was removed
        revision bigint NOT NULL,      -- of the agent's bindings when it was changed last
        stamp bytea NOT NULL,          -- of that change
        PRIMARY KEY (agent, key)
    )
    """,
    "CREATE INDEX binding_by_revision ON binding (agent, revision)",
    "CREATE TABLE lane (session text PRIMARY KEY, last bigint NOT NULL, running bigint)",
    """
    CREATE TABLE turn (
        session text NOT NULL,
        number bigint NOT NULL,
        place bigint NOT NULL,
        node text NOT NULL,            -- of the gateway that looks after it
        conversation bytea NOT NULL,
        name bytea NOT NULL,           -- tells it from every other turn of the conversation
        body bytea,                    -- what another gateway has to know to run it; none: nothing is to be run
        stopped text,                  -- why somebody wants it to end
        PRIMARY KEY (session, number),
        UNIQUE (conversation, name)
    )
    """,
    "CREATE INDEX turn_by_node ON turn (node)",
)
