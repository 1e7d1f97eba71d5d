"""Errors that a person reads."""


class UserError(Exception):
    """Something that the user can put right. The message is one line: what is wrong, and what would be right."""


class RunFailed(Exception):
    """A run cannot go on. The message is one line: why, and what would help."""


class RoundFailed(RunFailed):
    """A round has too few good replies; the run may go on with the next one."""
