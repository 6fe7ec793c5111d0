"""Claude Code: its projects folder, transcripts and sub-agents."""
