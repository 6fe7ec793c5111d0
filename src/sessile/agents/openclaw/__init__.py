"""OpenClaw and YoyoClaw: `sessions.json` and the transcripts of each agent."""
