"""Grading: extract, compare, score; custom reward functions. Imports no torch."""

from dapo.reward.grader import Grader
from dapo.reward.scoring import Scorer, Scorers
from dapo.reward.trl import math_reward, overlong_reward

__all__ = ["Grader", "Scorer", "Scorers", "math_reward", "overlong_reward"]
