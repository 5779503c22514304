"""Coverage-guided fuzzing of the codec: `python -m tests.fuzz TARGET [libFuzzer options]`; see CONTRIBUTING.md."""
