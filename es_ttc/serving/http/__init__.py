"""HTTP to clients and to the engine: requests, limits, pass-through, connections."""
