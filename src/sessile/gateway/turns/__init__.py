"""Turns: from a message to its reply."""
