"""Sharded parameters: when they were gathered, what that cost and held, and how much of it was exposed."""
