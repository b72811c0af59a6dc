"""From the stories of all ranks to one outcome per test: pure functions, no processes."""
