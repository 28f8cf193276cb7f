"""A tokenizer.json for tests: a byte-level BPE that the tokenizers library makes itself."""

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

END = "<|endoftext|>"


def write_tokenizer(path, text, *, size=400):
    """Write one that has learned up to `size` ids from a text, and would put END before a text; return the path."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=size, special_tokens=[END], initial_alphabet=alphabet, show_progress=False)
    made.train_from_iterator([text], trainer)
    made.post_processor = processors.TemplateProcessing(f"{END} $A", None, [(END, made.token_to_id(END))])
    made.save(str(path))
    return path
