"""Helpers that do not depend on search."""
