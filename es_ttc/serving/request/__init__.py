"""A search request: its searches, their bodies and sections, templates, and the response."""
