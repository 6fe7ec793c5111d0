"""Conversations: keys that are bound to sessions, and everything done with bindings."""
