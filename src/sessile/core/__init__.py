"""Pure logic of sessions: everything that can be computed from bytes and values alone.

No module here does I/O, reads the clock or uses randomness; these are passed in as arguments.
"""
