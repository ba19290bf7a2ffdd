r"""Tables of spelling: characters and commands, and what they stand for in cleaned LaTeX."""

from __future__ import annotations

_INVISIBLE = dict.fromkeys(
    [*range(0x200B, 0x2010), *range(0x202A, 0x202F), *range(0x2060, 0x2070), 0xFEFF, 0xAD, 0x61C, 0]
)
_SPACES = dict.fromkeys([0xA0, *range(0x2000, 0x200B), 0x202F, 0x205F, 0x3000, 9, 10, 11, 12, 13], " ")
_FULL_WIDTH = {code: chr(code - 0xFEE0) for code in range(0xFF01, 0xFF5F)}
_SYMBOLS = {
    "−": "-", "–": "-", "—": "-", "‒": "-", "‑": "-", "﹣": "-", "⁻": "^-", "×": r"\times ", "·": r"\cdot ",
    "⋅": r"\cdot ", "∙": r"\cdot ", "÷": "/", "∞": r"\infty ", "√": r"\sqrt ", "∛": r"\sqrt[3] ",
    "≤": r"\le ", "≥": r"\ge ",
    "≦": r"\le ", "≧": r"\ge ", "⩽": r"\le ", "⩾": r"\ge ", "≠": r"\ne ", "≈": r"\approx ", "∪": r"\cup ",
    "∩": r"\cap ", "∈": r"\in ", "±": r"\pm ", "∓": r"\mp ", "°": r"^{\circ}", "º": r"^{\circ}", "∅": r"\emptyset ",
    "ℝ": r"\mathbb{R}", "ℤ": r"\mathbb{Z}", "ℕ": r"\mathbb{N}", "ℚ": r"\mathbb{Q}", "∠": r"\angle ",
    "½": r" \frac{1}{2}", "⅓": r" \frac{1}{3}", "⅔": r" \frac{2}{3}", "¼": r" \frac{1}{4}", "¾": r" \frac{3}{4}",
    "⅕": r" \frac{1}{5}", "⅖": r" \frac{2}{5}", "⅗": r" \frac{3}{5}", "⅘": r" \frac{4}{5}", "⅙": r" \frac{1}{6}",
    "⅚": r" \frac{5}{6}", "⅛": r" \frac{1}{8}", "⅜": r" \frac{3}{8}", "⅝": r" \frac{5}{8}", "⅞": r" \frac{7}{8}",
    "。": ".", "、": ",", "“": '"', "”": '"', "‘": "'", "’": "'", "′": "'", "⁄": "/", "∕": "/", "∶": ":",
    "∖": r"\setminus ",
    "〈": r"\langle ", "〉": r"\rangle ", "⟨": r"\langle ", "⟩": r"\rangle ", "∣": "|", "∧": r"\land ", "∨": r"\lor ",
    "✓": " ", "✔": " ", "✅": " ", "■": " ", "□": " ", "∎": " ", "…": r"\ldots ", "¢": r"\text{cent}",
    "⌊": r"\lfloor ", "⌋": r"\rfloor ", "⌈": r"\lceil ", "⌉": r"\rceil ",
    "€": r"\text{euro}", "£": r"\text{pound}", "¥": r"\text{yuan}", "￥": r"\text{yuan}", "元": r"\text{yuan}",
    "和": r"\text{ and }", "或": r"\text{ or }", "或者": r"\text{ or }",
}  # fmt: skip
_GREEK = {
    "α": "alpha", "β": "beta", "γ": "gamma", "δ": "delta", "ε": "epsilon", "ζ": "zeta", "η": "eta", "θ": "theta",
    "λ": "lambda", "μ": "mu", "ν": "nu", "ξ": "xi", "π": "pi", "ρ": "rho", "σ": "sigma", "τ": "tau", "φ": "phi",
    "χ": "chi", "ψ": "psi", "ω": "omega", "Γ": "Gamma", "Δ": "Delta", "Θ": "Theta", "Λ": "Lambda", "Σ": "Sigma",
    "Φ": "Phi", "Ψ": "Psi", "Ω": "Omega",
}  # fmt: skip
SUPERSCRIPTS = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁻⁺ⁿ", "0123456789-+n")
CHARACTERS: dict[int, str | None] = (
    dict(_INVISIBLE)
    | _SPACES
    | _FULL_WIDTH
    | {ord(k): v for k, v in _SYMBOLS.items() if len(k) == 1}
    | {ord(k): f"\\{v} " for k, v in _GREEK.items()}
)

# A command and what stands for it; each ends where its letters end.
COMMANDS = {
    "dfrac": r"\frac", "nicefrac": r"\frac", "sfrac": r"\frac", "div": "/",
    "bf": " ", "rm": " ", "it": " ", "sf": " ", "large": " ", "Large": " ", "LARGE": " ", "huge": " ", "small": " ",
    "normalsize": " ", "therefore": " ", "checkmark": " ", "blacksquare": " ", "qed": " ",
    "tfrac": r"\frac", "cfrac": r"\frac", "leq": r"\le ", "leqslant": r"\le ", "leqq": r"\le ",
    "geq": r"\ge ", "geqslant": r"\ge ", "geqq": r"\ge ", "neq": r"\ne ", "lt": "<", "gt": ">", "infin": r"\infty ",
    "lbrace": r"\{", "rbrace": r"\}", "lbrack": "[", "rbrack": "]", "lparen": "(", "rparen": ")", "mid": "|",
    "vert": "|", "lvert": "|", "rvert": "|", "colon": ":", "backslash": r"\setminus ", "smallsetminus": r"\setminus ",
    "varnothing": r"\emptyset ", "degree": r"^{\circ}", "arcsin": r"\arcsin ", "varphi": r"\phi ", "wedge": r"\land ",
    "vee": r"\lor ", "simeq": r"\approx ", "dots": r"\ldots ", "cdots": r"\ldots ", "textpi": r"\pi ",
    "tbinom": r"\binom", "dbinom": r"\binom", "ast": r"\cdot ", "euro": r"\text{euro}", "pounds": r"\text{pound}",
    
    "lnot": r"\neg ", "thinspace": " ", "quad": " , ", "qquad": " , ", "enspace": " ", "space": " ", "left": "",
    "right": "", "middle": "",
    "big": "", "Big": "", "bigg": "", "Bigg": "", "bigl": "", "bigr": "", "Bigl": "", "Bigr": "", "biggl": "",
    "biggr": "", "displaystyle": "", "textstyle": "", "scriptstyle": "", "limits": "", "nolimits": "", "hfill": " ",
    "noindent": "",
}  # fmt: skip
# What \\mathrm{...} holds when it is a unit or an ordinal; e, i and d are mathematics.
SHORT_TEXT = frozenset("cm mm km kg mg mL ft th st nd rd m s g h L N J W V K".split())  # noqa: SIM905
