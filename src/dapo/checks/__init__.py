"""Self-checks of every step: pure functions that return findings; `watch.SelfChecks` applies the settings."""
