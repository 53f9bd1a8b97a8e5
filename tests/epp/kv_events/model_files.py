"""A model's files, made for tests: a tokenizer of byte pairs, and a chat template of the usual form."""

import json
import random
from pathlib import Path

from tokenizers import Tokenizer, models, pre_tokenizers, trainers

SPECIAL = ["<|im_start|>", "<|im_end|>", "<s>"]
TEMPLATE = """\
{%- if tools %}
{{- '<|im_start|>system\\n' }}
{%- for tool in tools %}
{{- tool | tojson }}
{%- endfor %}
{{- '<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
{{- '<|im_start|>' + message.role + '\\n' + (message.content or '') }}
{%- for call in message.tool_calls or [] %}
{{- call.function.name + call.function.arguments.place }}
{%- endfor %}
{{- '<|im_end|>' + '\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
{{- '<|im_start|>assistant\\n' }}
{%- if enable_thinking is defined and enable_thinking is false %}
{{- '<think>' }}
{%- endif %}
{%- endif %}
"""


def words(seed: int = 1, count: int = 300) -> list[str]:
    rng = random.Random(seed)
    return ["".join(rng.choices("abcdefghijklmnopqrstuvwxyz", k=rng.randint(2, 9))) for _ in range(count)]


def write_model(folder: Path) -> Tokenizer:
    """Returns the tokenizer that the files in the folder describe."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=1000, special_tokens=SPECIAL, show_progress=False, initial_alphabet=alphabet
    )
    tokenizer.train_from_iterator([" ".join(words())], trainer)
    folder.mkdir(exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {"chat_template": TEMPLATE, "eos_token": {"content": "<|im_end|>"}, "bos_token": None}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return tokenizer
