"""The page: one HTML file that needs nothing else, or the same page served and followed.

Nothing that a model wrote is ever markup. Data stand in script elements of a type that browsers do not run, and the
page's code puts them into the document as text. The Content-Security-Policy lets nothing run but the scripts of this
file, by their digests, and nothing be fetched.
"""

from __future__ import annotations

import base64
import hashlib
import json
import zlib
from collections.abc import Mapping
from importlib.resources import files
from typing import Any

CODE = ("base.js", "plots.js", "figures.js", "flows.js", "rollouts.js", "settings.js", "main.js")


def render(data: Mapping[str, Any], rollouts: str, *, live: bool = False) -> str:
    """The whole page.

    Args:
        data: of `report_data`.
        rollouts: of `packed`.
        live: whether the page may ask its own server for what is new.
    """
    folder = files("dapo.report") / "page"
    scripts = [plotly(), "\n".join((folder / name).read_text(encoding="utf-8") for name in CODE)]
    policy = {
        "default-src": "'none'",
        "script-src": " ".join(_digest(script) for script in scripts),
        "style-src": "'unsafe-inline'",
        "img-src": "data: blob:",
        "connect-src": "'self'" if live else "'none'",
        "base-uri": "'none'",
        "form-action": "'none'",
    }
    parts = {
        "policy": "; ".join(f"{name} {value}" for name, value in policy.items()),
        "style": (folder / "page.css").read_text(encoding="utf-8"),
        "data": as_json({**data, "live": live}),
        "rollouts": rollouts,
        "plotly": scripts[0],
        "code": scripts[1],
    }
    page = (folder / "page.html").read_text(encoding="utf-8")
    pieces = page.split("@@")  # text, name, text, name, ..., text
    return "".join(parts[piece] if place % 2 else piece for place, piece in enumerate(pieces))


def plotly() -> str:
    """plotly.min.js of the installed package."""
    code = (files("plotly") / "package_data" / "plotly.min.js").read_text(encoding="utf-8")
    return code.replace("</script", "<\\/script").replace("<!--", "<\\!--")


def as_json(data: Any) -> str:
    """JSON that can stand in a script element: pure ASCII, without < and so without any tag or comment.

    >>> as_json("</script>")
    '"\\\\u003c/script>"'
    """
    text = json.dumps(data, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c")


def packed(data: Any) -> str:
    """Bulky data: JSON, deflated, in base64. The page unpacks it with the browser's own DecompressionStream."""
    return base64.b64encode(zlib.compress(as_json(data).encode("ascii"), 6)).decode("ascii")


def _digest(script: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(script.encode('utf-8')).digest()).decode('ascii')}'"
