"""Problems whose answer is no integer, rewritten by rule into problems whose answer is one.

Section 3.5 and appendix B of the DAPO paper: a reward that compares integers makes no parsing mistakes.
The paper had a language model rewrite; here the answer is parsed, brought into the one form that its
value has, and the form's parameters are added up. Every rewrite is checked before it is handed out, and
what can't be rewritten without loss is refused with a reason.
"""

from .forms import FAMILIES, REASONS
from .rewrite import Refusal, Rewrite, rewrite
from .surface import canonical_integer

__all__ = ["FAMILIES", "REASONS", "Refusal", "Rewrite", "canonical_integer", "rewrite"]
