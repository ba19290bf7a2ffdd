"""Other systems' configurations as recipes of dapo. Imports no torch."""

from dapo.config.foreign.report import Refused, Translation, to_toml
from dapo.config.foreign.verl import translate_verl

__all__ = ["Refused", "Translation", "to_toml", "translate_verl"]
