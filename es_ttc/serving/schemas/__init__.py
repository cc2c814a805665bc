"""What the gateway accepts, as JSON Schema and OpenAPI: generated from the models that validate requests."""
