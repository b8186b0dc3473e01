"""The words of break-glass: a change of a user's object past Git, by members of a group who say why and until when.

The admission policies, the rules, and the controllers speak of the same annotations; the policies are YAML and repeat
them.
"""

from typing import Final

GROUP: Final = "npufleet:break-glass"
REASON_ANNOTATION: Final = "npufleet.io/break-glass-reason"
UNTIL_ANNOTATION: Final = "npufleet.io/break-glass-until"
