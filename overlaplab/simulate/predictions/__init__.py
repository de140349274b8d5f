"""A recorded run under another setting: its events, its steps at a slider's move, and how far they may be off."""
