"""The pure core: everything that can be decided about a session from bytes and values alone.

No module here does input or output, reads a clock or draws a random number; those are arguments.
"""
