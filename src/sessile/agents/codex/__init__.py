"""Codex: its rollout files, read only."""
