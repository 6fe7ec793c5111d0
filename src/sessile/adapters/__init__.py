"""Stores for agent frameworks: one file a framework, each thin over `Store`."""
