"""The timeline: lanes of marks, no more than a screen can draw, and the statistics of a window."""
