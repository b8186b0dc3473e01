"""The one error of the lab, so that its commands and its pytest plug-in can show a reason instead of a traceback."""


class LabError(Exception):
    """The lab cannot do what was asked; the message says why and what would help."""
