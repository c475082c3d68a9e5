"""A user's own network and data: from what the command line names to a point like all others."""
