"""Real ranks: how they start, what they train, and what must then hold."""
