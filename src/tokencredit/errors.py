"""The one error that a user can mend."""

from __future__ import annotations


class UsageError(ValueError):
    """Input that cannot work: one line that names the thing and what to do.

    Every check of user input in the package raises this; the command line prints the line and exits with 2.
    """
