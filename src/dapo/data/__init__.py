"""From rows to an endless, reproducible stream of prompts."""

from dapo.data.load import CheckedData, check_data, check_evaluation, tokenise_data, tokenise_evaluation
from dapo.data.prompts import LoadedData
from dapo.data.ratings import forecast_notes
from dapo.data.stream import PromptStream
from dapo.data.template import PromptTemplate

__all__ = [
    "CheckedData",
    "LoadedData",
    "PromptStream",
    "PromptTemplate",
    "check_data",
    "check_evaluation",
    "forecast_notes",
    "tokenise_data",
    "tokenise_evaluation",
]
