"""MyAgents: metadata, messages, statistics and how they are shown."""
