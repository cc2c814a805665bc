"""Mappings: specs, index bodies, and the spec stored in a mapping."""
