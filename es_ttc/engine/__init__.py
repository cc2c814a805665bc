"""The engine: async clients of Elasticsearch and OpenSearch behind one protocol, and an embedded node."""
