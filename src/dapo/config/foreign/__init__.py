"""Other systems' configurations as recipes of dapo. Imports no torch."""

from dapo.config.foreign.report import BUCKETS, Refused, Translation, to_toml
from dapo.config.foreign.trl import translate_trl
from dapo.config.foreign.verl import translate_verl

__all__ = ["BUCKETS", "Refused", "Translation", "to_toml", "translate_trl", "translate_verl"]
