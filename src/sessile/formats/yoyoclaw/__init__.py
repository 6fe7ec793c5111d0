"""YoyoClaw, also known as OpenClaw: session keys, and the entries of its store."""
