"""Sharded parameters: when they were gathered, what that cost and held, and what of it was exposed."""
