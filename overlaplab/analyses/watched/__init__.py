"""Tables of watched trainings: every step, who was late, which steps are of a kind, and what changed when."""
