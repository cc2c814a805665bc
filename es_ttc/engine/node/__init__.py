"""An embedded OpenSearch node: downloaded once, started as a process, without a container."""
