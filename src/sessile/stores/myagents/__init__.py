"""MyAgents' folder: index, lock, session files, attachments."""
