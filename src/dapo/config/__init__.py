"""Configuration: schema, composition, checks. Imports neither torch nor transformers."""

from dapo.config.check import check
from dapo.config.explain import batch_line, epoch_words, explain
from dapo.config.load import from_tree, load_config, recipe_names, resolve
from dapo.config.schema import Config, SourceConfig

__all__ = [
    "Config",
    "SourceConfig",
    "batch_line",
    "check",
    "epoch_words",
    "explain",
    "from_tree",
    "load_config",
    "recipe_names",
    "resolve",
]
