"""What happened when: lanes of marks, as many as a screen can draw, and the statistics of a window."""
