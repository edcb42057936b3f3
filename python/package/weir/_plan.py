"""A plan, with what is easier to say in Python."""

from typing import Mapping, Optional

from . import _weir


class Plan(_weir.Plan):
    """Several filters in one classifier: which accept a frame? Its cost hardly grows with them.

        plan = weir.Plan({"web": "tcp port 80", "dns": "udp port 53"})
        plan.matches(frame)      # ["dns"]
    """

    def __new__(cls, filters: Optional[Mapping[str, str]] = None, *, linktype: int = 1) -> "Plan":
        plan = super().__new__(cls, linktype=linktype)
        for name, text in (filters or {}).items():
            plan.add(name, text)
        return plan
