"""What hurts people who test on several ranks, the tests that prove that it does not here, and that they can fail."""
