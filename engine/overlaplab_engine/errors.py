"""The one error class for what a user can mend.

EngineError     bad configuration, ranks that disagree, a run that cannot go on
"""

__all__ = ["EngineError"]


class EngineError(Exception):
    """A mistake or a fault, told on one line that names what to do about it."""
