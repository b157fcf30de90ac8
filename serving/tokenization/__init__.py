"""Text in, text out: tokenizer, chat template, incremental detokenizer, stop strings. Imports no torch."""
