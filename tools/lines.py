"""The lines to type that make stored runs again."""

from __future__ import annotations

from onepass.bench.result import Result


def command(result: Result) -> str:
    """The line that makes runs like this one."""
    config = result.config
    words = ["onepass run", config.method, "--stream", config.stream, "--net", config.net]
    memory = getattr(config.settings, "memory", None)
    words += ["--memory", str(memory)] if memory else []
    words += ["--fraction", f"{config.fraction:g}"] if config.fraction < 1 else []
    return " ".join([*words, "--validate"] if config.validate else words)


def with_settings(result: Result) -> str:
    """The line that makes runs like this one, with all that differs from the method's defaults."""
    settings = result.config.learner_config
    defaults = type(settings)().to_json()
    changed = [
        f"--{name.replace('_', '-')} {f'{value:g}' if isinstance(value, float) else value}"
        for name, value in settings.to_json().items()
        if value != defaults[name] and name != "memory"
    ]
    return " ".join([command(result), *changed])
