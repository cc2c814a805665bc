"""Features of documents for the methods: found, read in the caller's name, kept, decoded, and scored."""
