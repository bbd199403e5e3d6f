"""Every figure of the README, each reproducible by one command. Nothing here runs in the tests."""
