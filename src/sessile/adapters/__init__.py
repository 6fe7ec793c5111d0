"""Session stores for agent frameworks, one module per framework, on top of `Store`."""
