"""The optimiser and the schedule of a verl configuration."""

from __future__ import annotations

from dapo.config.foreign.report import Account
from dapo.config.foreign.verl_keys import ACTOR


def optimiser(account: Account) -> None:
    """AdamW, its learning rate and warm-up."""
    optim = ACTOR + "optim."
    account.put("train.learning_rate", account.number(optim + "lr"), optim + "lr")
    account.put("train.weight_decay", account.number(optim + "weight_decay"), optim + "weight_decay")
    account.put("train.betas", account.value(optim + "betas"), optim + "betas")
    account.put("train.max_grad_norm", account.number(ACTOR + "grad_clip"), ACTOR + "grad_clip")
    shape = account.text(optim + "lr_scheduler_type")
    account.same(optim + "lr_scheduler_type")
    if shape not in ("", "constant"):
        account.lacks(
            optim + "lr_scheduler_type", f"a {shape} schedule; dapo's learning rate is constant after warm-up"
        )
    _warmup(account, optim)


def _warmup(account: Account, optim: str) -> None:
    steps, ratio = account.whole(optim + "lr_warmup_steps"), account.number(optim + "lr_warmup_steps_ratio") or 0.0
    account.same(optim + "lr_warmup_steps", optim + "lr_warmup_steps_ratio")
    source, total = optim + "lr_warmup_steps", account.whole("trainer.total_training_steps")
    if steps is None or steps < 0:
        source = optim + "lr_warmup_steps_ratio"
        if ratio > 0 and not total:
            account.lacks(
                source, "a share of all steps, whose number verl takes from the data; set warmup_rollout_steps"
            )
        steps = int(ratio * (total or 0))
    account.put("train.warmup_rollout_steps", steps, source)
    if steps:
        account.put("train.warmup_from_zero", True, source)


def schedule(account: Account) -> None:
    """How long the run goes, and what is evaluated and saved when."""
    name = account.given.values.get("trainer.experiment_name")
    account.machine("trainer.experiment_name")
    if isinstance(name, str) and name and all(sign.isalnum() or sign in "-_. " for sign in name):
        account.put("name", name, "trainer.experiment_name")
    total, epochs = account.whole("trainer.total_training_steps"), account.text("trainer.total_epochs")
    account.same("trainer.total_training_steps", "trainer.total_epochs")
    if total:
        account.put("train.num_steps", total, "trainer.total_training_steps")
        if account.has("trainer.total_epochs"):
            account.differs(
                "trainer.total_epochs", "verl also ends after these epochs; dapo after train.num_steps alone"
            )
    else:
        how = f"verl ends after {epochs} epoch(s) of the data; {account.steps_words()}"
        account.lacks("trainer.total_epochs", how)
    for ours, theirs in (("eval.every", "trainer.test_freq"), ("checkpoint.every", "trainer.save_freq")):
        steps = account.whole(theirs) or -1
        account.put(ours, steps if steps > 0 else "off", theirs)
    if (account.whole("trainer.test_freq") or -1) <= 0:
        account.differs("trainer.test_freq", "verl then does not evaluate at the end; dapo does")
    account.put("eval.before", account.flag("trainer.val_before_train"), "trainer.val_before_train")
    kept = account.whole("trainer.max_actor_ckpt_to_keep")
    account.same("trainer.max_actor_ckpt_to_keep")
    if kept:
        account.put("checkpoint.keep_last", kept, "trainer.max_actor_ckpt_to_keep")
    else:
        account.differs("trainer.max_actor_ckpt_to_keep", "verl keeps every checkpoint; dapo the last 2 (keep_last)")
