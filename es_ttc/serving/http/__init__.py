"""HTTP on both sides: requests as they come in, limits, pass-through, and the connection to the engine."""
