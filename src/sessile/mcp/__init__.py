"""Sessions for agents that speak MCP: three tools that find, list and read, and nothing that writes."""
