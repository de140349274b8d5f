"""From the text of one file to tables, in bounded memory, even if the file is damaged."""
