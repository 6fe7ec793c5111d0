"""YoyoClaw's folder: `sessions.json` and transcripts, for each agent."""
