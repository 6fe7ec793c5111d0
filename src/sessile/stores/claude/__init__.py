"""Claude Code's projects folder."""
