"""What a configuration means for the engine: its words about routing and workspaces, as conversations take them.

Nothing is read here and nothing is opened.
"""

from __future__ import annotations

import posixpath

from sessile.config import Config
from sessile.conversations.inbound import Routing


def routing_of(config: Config) -> Routing:
    """Which conversation a message belongs to, by a configuration."""
    rules = config.session
    return Routing(
        default_agent=config.agents.default_id,
        main_key=rules.main_key,
        scope=rules.scope,
        dm_scope=rules.dm_scope,
        bindings=tuple(rule.binding for rule in config.bindings),
        identity_links=rules.identity_links,
        links_keep_channel=rules.links_keep_channel,
    )


def agent_workspace(config: Config, root: str, agent: str) -> str:
    """The folder in which an agent works; one of its own below the root of the store if none is set."""
    told = config.agents.named(agent).workspace
    return f"{root}/workspaces/{agent}" if told is None else posixpath.abspath(posixpath.expanduser(told))
