"""Evaluating a model from Python, as `dapo eval` does."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dapo import evaluator
from dapo.config.load import with_settings
from dapo.evals.evaluation import Evaluation
from dapo.evals.run import evaluate as run_evaluation
from dapo.given import given_parts
from dapo.library.handle import Run
from dapo.library.rows import PROMPTS_FILE, write_rows
from dapo.out_of_memory import told
from dapo.run.signals import StopRequest, interrupt
from dapo.targets import resolve_target


def evaluate(
    model: str | Path | Run,
    prompts: Any,
    *,
    k: int,
    reward: Any = None,
    settings: Mapping[str, Any] | None = None,
) -> Evaluation:
    """avg@k, pass@k and maj@k of a model, with intervals, as `dapo eval` has them; nothing is written.

    Args:
        model: a run, RUN@STEP or "latest", with the run's own template and grading; or a Hugging Face id, a folder,
            a .gguf, which is asked in the paper's words unless settings say otherwise.
        prompts: rows (mappings with `problem` and `answer`), a file, a named set ("aime24"), or several with commas.
        k: samples per problem.
        reward: as for `Trainer`, where the configuration's is not meant, or was handed over in code.
        settings: dotted keys of the configuration, e.g. {"eval.temperature": 0, "eval.max_response_tokens": 64}.

    Raises:
        UserError: the model, a problem or a setting can't be used.
        Interrupted: Ctrl-C.
    """
    config = resolve_target(str(model.path if isinstance(model, Run) else model), template="dapo")
    given = given_parts(reward=reward)
    asked: dict[str, Any] = {"eval.k": k, **given.settings, **(settings or {})}
    with told(), tempfile.TemporaryDirectory(prefix="dapo-") as folder:
        source = str(prompts)
        if not isinstance(prompts, (str, Path)):
            file = Path(folder) / PROMPTS_FILE
            write_rows(prompts, file)
            source = str(file)
        config = evaluator.prepare(with_settings(config, {**asked, "eval.data": source}))
        made = evaluator.for_model(config, {"name": str(model), "path": config.model.path}, given)
        try:
            with StopRequest(lambda text: None, "without figures", leave=interrupt) as stop:
                return run_evaluation(made.engine, made.grader, made.sets, made.config, stopped=lambda: stop.requested)
        finally:
            made.engine.close()
