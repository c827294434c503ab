"""The front door: one function per verb, the same words everywhere. The command line parses, calls these, prints."""
