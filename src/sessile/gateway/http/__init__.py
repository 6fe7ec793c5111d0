"""HTTP: routes, guards, schema, streams and the server."""
