"""The alerts, as a table: what is looked at, past which bound, why that bound, what it means and which knob."""

from __future__ import annotations

from dapo.alerts.rule import Condition, Rule
from dapo.config.schema import Config


def _token_ratios(config: Config) -> bool:
    return config.algorithm.objective not in ("gspo", "kl_cov")


def _updates(config: Config) -> bool:
    bounded = config.algorithm.clip_high is not None or config.algorithm.clip_low is not None
    return _token_ratios(config) and config.train.updates_per_step > 1 and bounded


RULES: tuple[Rule, ...] = (
    Rule(
        alert="entropy-collapse",
        metric="policy/entropy",
        conditions=(
            Condition(
                measure="to_early",
                window=5,
                bound=0.25,
                clear=0.4,
                over=False,
                why="healthy runs lose up to about half of it; a quarter of the start is beyond that",
            ),
            Condition(
                measure="level",
                window=5,
                bound=0.05,
                clear=0.08,
                over=False,
                why="0.05 nats is a likeliest token of 99%: the responses of a group become copies",
            ),
        ),
        means="entropy is {last:.3g} nats, {value:.0%} of its early level: exploration has all but ended",
        advice="raise algorithm.clip_high (Clip-Higher), lower train.learning_rate or train.updates_per_step, or set "
        "algorithm.entropy_coef or algorithm.objective = clip_cov; go back to a checkpoint from before the fall",
    ),
    Rule(
        alert="length-explosion",
        metric="response/length_mean_tokens",
        conditions=(
            Condition(
                measure="growth",
                window=5,
                bound=1.5,
                clear=1.2,
                why="half as long again within some ten steps; lengths that grow with skill take tens of steps",
            ),
            Condition(
                measure="level",
                window=5,
                bound=0.4,
                clear=0.3,
                unit="sampling.max_response_tokens",
                why="of the longest response: at this pace it is reached within a few steps",
            ),
        ),
        means="responses grew {value:.2g} times longer within 15 steps, to {last:.0f} tokens: "
        "they run towards the longest allowed",
        advice="look at them (dapo browse) for repetition; reward.overlong = soft with a larger "
        "reward.overlong_buffer_tokens, lower train.learning_rate, algorithm.reduction = minibatch",
    ),
    Rule(
        alert="truncated",
        metric="response/truncated_fraction",
        conditions=(
            Condition(
                measure="level",
                window=10,
                bound=0.3,
                clear=0.2,
                why="nearly a third of the responses end without an answer: their reward is about length alone",
            ),
            Condition(
                measure="growth",
                window=5,
                bound=0.9,
                clear=0.7,
                why="a share that is falling mends itself, as in the first steps of a run",
            ),
        ),
        means="{value:.0%} of the responses are cut off at sampling.max_response_tokens, and it is not getting less",
        advice="raise sampling.max_response_tokens, or shorten responses: reward.overlong = soft, a larger "
        "reward.overlong_buffer_tokens, sampling.stop",
    ),
    Rule(
        alert="acceptance-low",
        metric="sampling/acceptance",
        conditions=(
            Condition(
                measure="level",
                window=10,
                bound=0.2,
                clear=0.27,
                over=False,
                why="five draws and more for a group to train on: four fifths of sampling are thrown away",
            ),
        ),
        means="{value:.0%} of the draws are kept: most of what is sampled is all right or all wrong, and thrown away",
        advice="see sampling/all_right_fraction and sampling/all_wrong_fraction for which; measure with dapo data rate "
        "and set data.min_pass_rate and data.max_pass_rate, raise sampling.responses_per_prompt, or set "
        "sampling.skip_solved_after",
    ),
    Rule(
        alert="all-wrong",
        metric="sampling/all_wrong_fraction",
        conditions=(
            Condition(
                measure="level",
                window=20,
                bound=0.8,
                clear=0.7,
                why="four of five prompts teach nothing for being too hard; the start of a hard run is often at 0.6",
            ),
        ),
        means="all responses are wrong for {value:.0%} of the prompts, over 20 steps: hardly any learning signal",
        advice="check that right answers are found (dapo browse, dapo grade --explain, reward.extract); easier "
        "problems (dapo data rate, data.min_pass_rate), raise sampling.responses_per_prompt",
    ),
    Rule(
        alert="all-right",
        metric="sampling/all_right_fraction",
        conditions=(
            Condition(
                measure="level",
                window=20,
                bound=0.7,
                clear=0.6,
                why="most prompts are solved at every try: what is left to learn from costs over three draws a group",
            ),
        ),
        means="all responses are right for {value:.0%} of the prompts, over 20 steps: the data is used up",
        advice="harder problems (dapo data rate, data.max_pass_rate), set sampling.skip_solved_after, or stop here",
    ),
    Rule(
        alert="clip-high",
        metric="clip/high_fraction",
        conditions=(
            Condition(
                measure="level",
                window=5,
                bound=0.1,
                clear=0.06,
                why="token ratios are clipped in 0.1% to 2% of tokens as a rule; a tenth means steps too long to trust",
            ),
        ),
        means="{value:.1%} of the tokens are clipped at 1 + clip_high: updates leave the region that they were "
        "sampled for",
        advice="lower train.learning_rate or train.updates_per_step, raise sampling.prompts_per_step; check "
        "mismatch/logprob_abs_mean where algorithm.old_logprobs = engine",
        applies=_token_ratios,
        where="not with objective gspo (whose ratios of whole responses are clipped far more) or kl_cov",
    ),
    Rule(
        alert="clip-low",
        metric="clip/low_fraction",
        conditions=(
            Condition(
                measure="level",
                window=5,
                bound=0.15,
                clear=0.1,
                why="the lower side is clipped more, above all in a run's first steps, where sound ones reached 0.1",
            ),
        ),
        means="{value:.1%} of the tokens are clipped at 1 - clip_low: wrong responses are pushed down further than "
        "one batch can tell",
        advice="lower train.learning_rate or train.updates_per_step, raise sampling.prompts_per_step",
        applies=_token_ratios,
        where="not with objective gspo or kl_cov",
    ),
    Rule(
        alert="clip-never",
        metric="clip/high_fraction",
        conditions=(
            Condition(
                measure="peak",
                window=50,
                bound=0.0,
                clear=0.0,
                over=False,
                why="several updates on one batch move ratios; not one clipped token in 50 steps is no chance",
            ),
            Condition(
                measure="peak",
                metric="clip/low_fraction",
                window=50,
                bound=0.0,
                clear=0.0,
                over=False,
                why="the same on the lower side",
            ),
        ),
        means="not one token was clipped in 50 steps, with several updates a step: the policy hardly moves",
        advice="raise train.learning_rate (look at train/learning_rate and grad/norm first), or save the passes: "
        "train.updates_per_step = 1",
        applies=_updates,
        where="with train.updates_per_step over 1 and a clip",
    ),
    Rule(
        alert="engine-gap",
        metric="mismatch/logprob_abs_mean",
        conditions=(
            Condition(
                measure="to_early",
                window=10,
                bound=2.5,
                clear=1.7,
                why="the gap follows the policy's entropy a little; it does not grow several times by itself",
            ),
            Condition(
                measure="level",
                window=10,
                bound=0.02,
                clear=0.015,
                why="2% a token, a tenth of the clip range of 0.2, and it multiplies over a response",
            ),
        ),
        means="engine and learner differ by {last:.2g} nats a token, {value:.2g} times the early gap: tokens are not "
        "from the policy that is trained",
        advice="set algorithm.importance_cap = 2, algorithm.old_logprobs = learner, model.dtype = float32; lower "
        "sampling.max_staleness",
    ),
    Rule(
        alert="evaluation-falls",
        metric="eval/*accuracy",
        conditions=(
            Condition(
                measure="sure_fall",
                window=3,
                bound=0.02,
                clear=0.0,
                why="two points of accuracy beyond what the noise between evaluations explains",
            ),
            Condition(
                measure="gain",
                metric="sampled/reward_mean",
                window=40,
                bound=0.0,
                clear=-0.02,
                why="while the reward does not fall; where both fall, the run is failing in another way",
            ),
        ),
        steady=1,
        means="the last three evaluations are under the best three by {value:.1%} more than their noise, while the "
        "training reward holds: the reward is being gamed, or the data over-fitted",
        advice="read high-reward responses (dapo browse); stricter reward.extract or reward.functions; more or fresher "
        "data; go back to the best checkpoint (checkpoint.keep_best)",
    ),
    Rule(
        alert="gradient-spike",
        metric="grad/norm",
        conditions=(
            Condition(
                measure="spike",
                window=20,
                bound=10.0,
                clear=3.0,
                why="ten times the usual norm; step by step it varies by less than three times",
            ),
        ),
        steady=1,
        means="the gradient norm is {last:.3g}, {value:.0f} times its median of 20 steps: one batch outweighs the rest",
        advice="set train.max_grad_norm (it bounds what such a batch can do) or algorithm.log_ratio_clamp; look at the "
        "step's responses (dapo browse)",
    ),
    Rule(
        alert="gradient-clipped",
        metric="grad/norm",
        conditions=(
            Condition(
                measure="to_early",
                window=10,
                bound=5.0,
                clear=3.0,
                why="norms rise as responses get shorter and surer, but by less than this",
            ),
            Condition(
                measure="level",
                window=10,
                bound=2.0,
                clear=1.5,
                unit="train.max_grad_norm",
                why="updates are cut to less than half, step after step",
            ),
        ),
        means="the gradient norm is {last:.3g}, {value:.2g} times its early level, and clipped in step after step",
        advice="lower train.learning_rate; look at policy/entropy and ratio/max, which tell where it comes from",
    ),
    Rule(
        alert="gradient-nonfinite",
        metric="grad/nonfinite_updates",
        conditions=(
            Condition(
                measure="total", window=20, bound=1.0, clear=1.0, why="not one is expected: a skipped update is a fault"
            ),
        ),
        steady=1,
        means="{value:.0f} updates within 20 steps had gradients that are no numbers, and were skipped",
        advice="set algorithm.log_ratio_clamp = 20, lower train.learning_rate, model.dtype = float32",
    ),
    Rule(
        alert="grading-timeouts",
        metric="sampled/timeout_fraction",
        conditions=(
            Condition(
                measure="level",
                window=5,
                bound=0.05,
                clear=0.03,
                why="one response in twenty is called wrong for want of time: noise in the reward, and slow grading",
            ),
        ),
        means="grading ran out of time on {value:.1%} of the responses, which count as wrong",
        advice="raise reward.symbolic_limit_s or reward.tests_limit_s, or reward.symbolic_workers; see which answers "
        "with dapo browse",
    ),
    Rule(
        alert="grading-errors",
        metric="sampled/error_fraction",
        conditions=(
            Condition(
                measure="level",
                window=5,
                bound=0.03,
                clear=0.01,
                why="a grader that fails on one response in thirty is at fault, not the responses",
            ),
        ),
        means="the grader failed on {value:.1%} of the responses, which count as wrong",
        advice="log.txt has the errors; mend the function of reward.functions; reward.max_error_fraction stops a run",
    ),
    Rule(
        alert="unparsed",
        metric="sampled/unparsed_fraction",
        conditions=(
            Condition(
                measure="level",
                window=10,
                bound=0.3,
                clear=0.2,
                why="no answer is found in a third of the responses; a sound start is under that within ten steps",
            ),
        ),
        means="no answer was found in {value:.0%} of the responses, which count as wrong",
        advice="read some (dapo browse): where answers are there, set reward.extract; where not, say the form in "
        "data.system or data.template, or raise sampling.max_response_tokens",
    ),
    Rule(
        alert="accuracy-flat",
        metric="sampled/accuracy",
        conditions=(
            Condition(
                measure="highest_gain",
                window=200,
                bound=0.02,
                clear=0.04,
                over=False,
                why="two points in 200 steps at the most, noise allowed for: the hours buy next to nothing",
            ),
        ),
        steady=10,
        means="accuracy gained at most {value:.1%} over the last 200 steps (now {last:.1%}): device hours buy "
        "hardly anything",
        advice="stop here, or change something: harder or fresher data, train.learning_rate, "
        "sampling.responses_per_prompt; see progress/accuracy_gain_per_device_hour",
        applies=lambda config: config.sampling.skip_solved_after is None,
        where="not with sampling.skip_solved_after, which takes the solved problems out of what is measured",
    ),
    Rule(
        alert="saves-failed",
        metric="checkpoint/failed_saves",
        conditions=(
            Condition(
                measure="total",
                window=200,
                bound=2.0,
                clear=1.0,
                why="one may be chance, a second one within 200 steps is a disk that is full or away",
            ),
        ),
        steady=1,
        means="{value:.0f} saves failed within 200 steps: a crash now loses what was done since the last one",
        advice="make room on the disk; checkpoint.keep_last, checkpoint.keep_every and log.rollouts_every say what "
        "takes it",
    ),
)
