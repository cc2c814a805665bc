"""Search for agents by the Model Context Protocol: read-only tools that send standard searches to a gateway."""
