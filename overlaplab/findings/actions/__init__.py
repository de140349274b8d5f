"""What to do: every action with its words, and which of them gains most."""
