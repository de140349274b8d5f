"""Charts of sharded parameters: when they were gathered, what that cost, and how much was held."""
