"""The page, in one piece: it asks nobody but this server, and its script is the only one that may run."""

from __future__ import annotations

import base64
import hashlib
from functools import cache
from importlib.resources import files


@cache
def page() -> tuple[str, str]:
    """The page and its Content-Security-Policy."""
    folder = files("onepass.live.serving") / "templates"
    html, css, js = ((folder / f"live.{kind}").read_text(encoding="utf-8") for kind in ("html", "css", "js"))
    whole = html.replace("/* live.css */", css).replace("/* live.js */", js)
    script = whole.split("<script>", 1)[1].split("</script>", 1)[0]
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = (
        f"default-src 'none'; script-src 'sha256-{digest}'; style-src 'unsafe-inline'; img-src data: blob:; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    return whole, policy
