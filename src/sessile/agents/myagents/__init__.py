"""MyAgents: its index, lock, session files and attachments."""
