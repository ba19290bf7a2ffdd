"""Grading: extract, compare, score; custom reward functions. Imports no torch."""

from dapo.reward.grader import Grader
from dapo.reward.scoring import Scorer

__all__ = ["Grader", "Scorer"]
