"""The sentences that are added to a problem, in English and in Chinese.

Every sentence says all that makes the integer unique. None has a number in it beyond those of the form,
and none in words, so that no sentence gives an integer away.
"""

from __future__ import annotations

from .forms import Form, Target


def sentences(form: Form, target: Target, *, chinese: bool) -> str:
    """What is added below a problem so that its answer becomes the target's integer."""
    if form.family in ("decimal", "percent", "unit"):
        return _scaled_chinese(form) if chinese else _scaled_english(form)
    if form.family == "polynomial":
        return _polynomial(form, target, chinese)
    if form.family == "base":
        return _base(form, target, chinese)
    if form.family == "set":
        return _set(target, chinese)
    return _lettered_chinese(form, target) if chinese else _lettered_english(form, target)


def names(letters: tuple[str, ...], last: str) -> str:
    """`$k$, $m$ and $n$`, with the given word before the last."""
    marked = [f"${letter}$" for letter in letters]
    return marked[0] if len(marked) == 1 else ", ".join(marked[:-1]) + f" {last} {marked[-1]}"


def _listed(letters: tuple[str, ...]) -> str:
    """`$k$、$m$、$n$`."""
    return "、".join(f"${letter}$" for letter in letters)


def _conditions_english(form: Form) -> str:
    """What holds of the letters."""
    integers = tuple(letter for letter in form.parameters if letter not in form.positive)
    clauses = []
    for letters, kind in ((integers, "integer"), (form.positive, "positive integer")):
        if letters:
            verb = f"is a{'n' if kind == 'integer' else ''} {kind}" if len(letters) == 1 else f"are {kind}s"
            clauses.append(f"{names(letters, 'and')} {verb}")
    if form.squarefree:
        clauses.append(f"${form.squarefree}$ is not divisible by the square of any prime")
    for group in form.coprime:
        if len(group) == 2:
            clauses.append(f"{names(group, 'and')} are relatively prime")
        else:
            clauses.append(f"no prime divides all of {names(group, 'and')}")
    if form.family == "complex":
        clauses.append("$i$ is the imaginary unit")
    return clauses[0] if len(clauses) == 1 else ", ".join(clauses[:-1]) + f", and {clauses[-1]}"


def _conditions_chinese(form: Form) -> str:
    """What holds of the letters."""
    integers = tuple(letter for letter in form.parameters if letter not in form.positive)
    clauses = []
    if integers:
        clauses.append(f"{_listed(integers)} 是整数")
    if form.positive:
        clauses.append(f"{_listed(form.positive)} 是正整数")
    if form.squarefree:
        clauses.append(f"${form.squarefree}$ 不能被任何质数的平方整除")
    for group in form.coprime:
        clauses.append(f"{_listed(group)} {'互质' if len(group) == 2 else '没有公共的质因数'}")
    if form.family == "complex":
        clauses.append("$i$ 是虚数单位")
    return "，".join(clauses)


def _lettered_english(form: Form, target: Target) -> str:
    """Of fractions, surds, multiples of pi, complex numbers, tuples and matrices."""
    measured = f"Measured in {form.unit}, the" if form.unit else "The"
    return (
        f"{measured} answer to the problem above can be written in the form ${form.template}$, where "
        f"{_conditions_english(form)}. Do not give that answer itself; give the integer ${target.text}$ instead."
    )


def _lettered_chinese(form: Form, target: Target) -> str:
    """The same in Chinese."""
    measured = f"以 {form.unit} 为单位，" if form.unit else ""
    return (
        f"{measured}上述问题的答案可以写成 ${form.template}$ 的形式，其中{_conditions_chinese(form)}。"
        f"请不要给出该答案本身，而是给出整数 ${target.text}$ 的值。"
    )


def _scaled_english(form: Form) -> str:
    """Of decimals, percentages and amounts with a unit."""
    unit = "" if not form.unit else " as a percentage" if form.unit == "percent" else f" as a number of {form.unit}"
    bare = {"": "", "percent": ", without the percent sign", "degrees": ", without the degree sign"}
    without = bare.get(form.unit, ", without the unit")
    if not form.places:
        return (
            f"Express the answer to the problem above{unit} and give only that number, rounded to an integer if it "
            f"is not one{without}."
        )
    digits = f"{form.places} decimal place{'s' if form.places > 1 else ''}"
    return (
        f"Express the answer to the problem above{unit or ' as a decimal number'}, round it to {digits} and multiply "
        f"it by {10**form.places}. Give only the resulting integer{without}."
    )


def _scaled_chinese(form: Form) -> str:
    """The same in Chinese."""
    unit = {"": "", "percent": "用百分数表示", "degrees": "以度为单位表示", "dollars": "以美元为单位表示"}.get(
        form.unit, f"以 {form.unit} 为单位表示"
    )
    without = f"，不要写{'百分号' if form.unit == 'percent' else '单位'}" if form.unit else ""
    if not form.places:
        return f"请把上述问题的答案{unit}，只给出其中的数（若不是整数，则四舍五入到整数）{without}。"
    rounding = f"四舍五入到小数点后 {form.places} 位，再乘以 {10**form.places}"
    return f"请把上述问题的答案{unit or '写成小数'}，{rounding}，只给出所得的整数{without}。"


def _polynomial(form: Form, target: Target, chinese: bool) -> str:
    """Of polynomials: their value at a small integer, or the sum of the coefficients."""
    name = form.template
    if chinese:
        asked = (
            "请给出它展开后所有系数（包括常数项）之和"
            if target.kind == "coefficients"
            else f"请给出整数 ${target.text}$ 的值"
        )
        return f"上述问题的答案是关于 ${form.variable}$ 的多项式 ${name}$。请不要给出该多项式本身，{asked}。"
    asked = (
        "the sum of the coefficients of the expanded polynomial, the constant term included"
        if target.kind == "coefficients"
        else f"the integer ${target.text}$"
    )
    return (
        f"The answer to the problem above is a polynomial ${name}$ in ${form.variable}$. "
        f"Do not give the polynomial itself; give instead {asked}."
    )


def _base(form: Form, target: Target, chinese: bool) -> str:
    """Of numerals: their digits, or their value."""
    if target.kind == "ten":
        if chinese:
            return "请把上述问题的答案换算成十进制，并给出所得的整数。"
        return "Convert the answer to the problem above to decimal notation and give the resulting integer."
    if chinese:
        return f"请把上述问题的答案写成 {form.base} 进制，并只给出它的各位数字（不写进制），如同一般的整数。"
    return (
        f"Write the answer to the problem above in base {form.base} and give only its digits, "
        "as an ordinary integer without the base."
    )


def _set(target: Target, chinese: bool) -> str:
    """Of lists of integers."""
    if chinese:
        what = "这些不同数值的平方和" if target.kind == "squares" else "这些不同数值的和"
        return f"上述问题的答案由若干整数组成。请不要列出它们，而是给出{what}（相同的数值不重复计算）。"
    what = (
        "the sum of the squares of its distinct values"
        if target.kind == "squares"
        else "the sum of its distinct values"
    )
    return (
        f"The answer to the problem above is a collection of integers. Do not list them; give {what} instead, "
        "so that a repeated value counts once."
    )
