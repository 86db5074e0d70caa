"""What is checked of a file before the library that reads it sees it."""
