"""The gateway: one process that owns conversations and answers over HTTP."""
