"""Alerts: what goes wrong in a run, told while it happens, with the knob to turn.

Everything is a function of the lines of metrics.jsonl, so a resumed run raises what it would have raised anyway.
"""

from dapo.alerts.rule import Condition, Rule
from dapo.alerts.rules import RULES
from dapo.alerts.watch import Alert, Watch, alerts

__all__ = ["RULES", "Alert", "Condition", "Rule", "Watch", "alerts"]
