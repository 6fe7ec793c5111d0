"""The demo: made-up sessions to look around in."""
