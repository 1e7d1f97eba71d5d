"""Errors that a person reads."""


class UserError(Exception):
    """Something that the user can put right. The message is one line: what is wrong, and what would be right."""
