"""Conversations: keys that are bound to sessions, as a gateway keeps them, and everything that is done with bindings."""
