"""Tables of results as data, the stored runs they show, and their form as Markdown and pictures."""
