#!/usr/bin/env python3
"""The model beside Hugging Face's transformers: the same logits, in both directions.

    dev/test/cli/test_huggingface.py CKPT GPT2_LOGITS TOKENIZE_TEXT [FOLDER...] [--case WORD]

GPT2_LOGITS is build/cpu-fp32/gpt2_logits. Random small models go from transformers to a model file, and a model file
goes to transformers; each FOLDER, of a real model such as openai-community/gpt2, goes there and back. Logits may differ
by 1e-5 of the largest one; weights not at all.
"""

import os
import struct
import subprocess
import sys
import tempfile

import numpy
import torch
import transformers

os.environ.update(OMP_NUM_THREADS="2", HF_HUB_OFFLINE="1", TRANSFORMERS_OFFLINE="1")
torch.set_num_threads(2)
transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()
SIZES = dict(vocab_size=331, n_positions=48, n_embd=96, n_layer=3, n_head=4)


def run(*command):
    result = subprocess.run([str(c) for c in command], capture_output=True, text=True, timeout=300)
    if result.returncode:
        raise RuntimeError(result.stdout + result.stderr)
    return result.stdout


def random_model(seed=1, **changes):
    """Weights are larger than a real initialisation's, so that every part has its share in the logits."""
    torch.manual_seed(seed)
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config(**{**SIZES, **changes}))
    with torch.no_grad():
        for name, p in model.named_parameters():
            p.copy_((1.0 if "ln_" in name and name.endswith("weight") else 0.0) + 0.1 * torch.randn(p.shape))
    return model.eval()


def logits_differ(model, model_file, tools, work):
    """None, or what is wrong; prints the largest difference."""
    c = model.config
    tokens = numpy.random.default_rng(5).integers(0, c.vocab_size, min(c.n_positions, 64)).astype(numpy.int32)
    tokens.tofile(f"{work}/tokens")
    run(tools["logits"], model_file, f"{work}/tokens", f"{work}/logits")
    ours = numpy.fromfile(f"{work}/logits", numpy.float32).reshape(len(tokens), c.vocab_size)
    with torch.no_grad():
        theirs = model.float()(torch.tensor(tokens, dtype=torch.int64)[None]).logits[0].numpy()
    off, largest = numpy.abs(ours - theirs).max(), numpy.abs(theirs).max()
    print(f"      logits up to {largest:.4g} differ by {off:.2g} at most")
    return None if off <= 1e-5 * max(1.0, largest) else f"logits differ by {off:.3g}, the largest is {largest:.3g}"


def same_weights(a, b):
    a, b = a.state_dict(), b.state_dict()
    for name in a:
        is_mask = name.endswith((".attn.bias", ".attn.masked_bias"))
        if not is_mask and not torch.equal(a[name].float(), b[name].float()):
            return f"{name} is another"
    return None if a.keys() == b.keys() else "other names"


def from_transformers(tools, work, save=lambda m, f: m.save_pretrained(f), **changes):
    """A folder that transformers saved is imported; exported again, transformers loads the same weights."""
    model = random_model(**changes)
    save(model, f"{work}/a")
    run(tools["ckpt"], "import", f"{work}/a", f"{work}/a.bin", "--precision", "fp32")
    run(tools["ckpt"], "export", f"{work}/a.bin", f"{work}/b")
    saved = transformers.GPT2LMHeadModel.from_pretrained(f"{work}/a", torch_dtype=torch.float32).eval()
    again = transformers.GPT2LMHeadModel.from_pretrained(f"{work}/b").eval()
    return same_weights(saved, again) or logits_differ(saved, f"{work}/a.bin", tools, work)


def save_sharded(model, folder):
    model.save_pretrained(folder, max_shard_size="200KB")
    assert os.path.exists(f"{folder}/model.safetensors.index.json")


def save_without_head(model, folder):
    model.transformer.save_pretrained(folder)


def to_transformers(tools, work, version=3):
    """A model file is exported, and transformers loads it; imported again it has the same bytes."""
    T, V, L, H, C, Vp = 40, 300, 2, 3, 72, 384
    numel = Vp * C + T * C + L * (12 * C * C + 13 * C) + 2 * C
    values = (numpy.random.default_rng(3).standard_normal(numel) * 0.1).astype(numpy.float32)
    values[V * C : Vp * C] = 0
    raw = values.tobytes() if version == 3 else (values.view(numpy.uint32) >> 16).astype(numpy.uint16).tobytes()
    with open(f"{work}/a.bin", "wb") as f:
        f.write(struct.pack("<8i", 20240326, version, T, V, L, H, C, Vp) + bytes(1024 - 32) + raw)
    run(tools["ckpt"], "export", f"{work}/a.bin", f"{work}/b")
    run(tools["ckpt"], "import", f"{work}/b", f"{work}/c.bin")
    if open(f"{work}/a.bin", "rb").read() != open(f"{work}/c.bin", "rb").read():
        return "the model file is another after a round trip"
    dtype = torch.float32 if version == 3 else torch.bfloat16
    model = transformers.GPT2LMHeadModel.from_pretrained(f"{work}/b", torch_dtype="auto").eval()
    if model.dtype != dtype:
        return f"transformers loads it as {model.dtype}"
    run(tools["ckpt"], "convert", f"{work}/a.bin", f"{work}/fp32.bin", "--precision", "fp32")
    return logits_differ(model, f"{work}/fp32.bin", tools, work)


def tokenizer(tools, work):
    """A small byte-pair encoding: GPT2Tokenizer makes the same tokens of a text as tokenize_text."""
    vocabulary = [bytes([b]) for b in range(256)]
    vocabulary += [b"th", b"he", b" t", b"the", b" the", b"\n\n", b"an", b"and", b"\xc3\xa4"]
    vocabulary += [b" an", b" and", b'""', b"\\\\", b"<|endoftext|>"]
    with open(f"{work}/tokenizer.bin", "wb") as f:
        f.write(struct.pack("<4I", 20240328, 2, len(vocabulary), len(vocabulary) - 1) + bytes(1024 - 16))
        f.write(b"".join(bytes([len(w)]) + w for w in vocabulary))
    text = 'The thethe and\n\nanother -- "" \\\\ \u00e4\u00e4 \u4e2d they\'ll\tand\u00ad\u00a0 12 the  the\x7f\x01' * 50
    with open(f"{work}/text", "w", encoding="utf-8") as f:
        f.write(text)
    run(tools["tokenize"], f"{work}/tokenizer.bin", f"{work}/train.bin", f"{work}/val.bin", f"{work}/text")
    ours = [t for part in ("train", "val") for t in numpy.fromfile(f"{work}/{part}.bin", numpy.uint16)[512:].tolist()]
    random_model(vocab_size=len(vocabulary)).save_pretrained(f"{work}/a")
    run(tools["ckpt"], "import", f"{work}/a", f"{work}/a.bin")
    run(tools["ckpt"], "export", f"{work}/a.bin", f"{work}/b", "--tokenizer", f"{work}/tokenizer.bin")
    theirs = transformers.AutoTokenizer.from_pretrained(f"{work}/b")
    got = theirs.encode(text, add_special_tokens=False)
    if [theirs.eos_token_id, *got] != ours:
        return f"other tokens: {got[:20]}, not {ours[1:21]}"
    return None if theirs.decode(got, clean_up_tokenization_spaces=False) == text else "another text"


def real(tools, work, folder):
    model = transformers.GPT2LMHeadModel.from_pretrained(folder, torch_dtype=torch.float32).eval()
    run(tools["ckpt"], "import", folder, f"{work}/a.bin")
    run(tools["ckpt"], "export", f"{work}/a.bin", f"{work}/b")
    again = transformers.GPT2LMHeadModel.from_pretrained(f"{work}/b").eval()
    return same_weights(model, again) or logits_differ(model, f"{work}/a.bin", tools, work)


def main():
    arguments = sys.argv[1:]
    word = ""
    if "--case" in arguments:
        at = arguments.index("--case")
        word = arguments[at + 1]
        del arguments[at : at + 2]
    tools = dict(zip(["ckpt", "logits", "tokenize"], arguments))
    cases = {
        "from transformers": lambda *a: from_transformers(*a),
        "from transformers, heads of 8, vocabulary of 128": lambda *a: from_transformers(
            *a, n_head=12, vocab_size=128, n_layer=2
        ),
        "from transformers, several files": lambda *a: from_transformers(*a, save=save_sharded),
        "from transformers, without prefix and head": lambda *a: from_transformers(*a, save=save_without_head),
        "from transformers, BF16": lambda *a: from_transformers(
            *a, save=lambda m, f: m.to(torch.bfloat16).save_pretrained(f)
        ),
        "from transformers, F16": lambda *a: from_transformers(*a, save=lambda m, f: m.half().save_pretrained(f)),
        "to transformers, fp32": lambda *a: to_transformers(*a),
        "to transformers, bf16": lambda *a: to_transformers(*a, version=5),
        "tokenizer": tokenizer,
    }
    for folder in arguments[3:]:
        cases[f"real model {folder}"] = lambda *a, folder=folder: real(*a, folder)
    passed = failed = 0
    print(f"transformers {transformers.__version__}, PyTorch {torch.__version__}")
    for name, case in cases.items():
        if word not in name:
            continue
        with tempfile.TemporaryDirectory() as work:
            try:
                wrong = case(tools, work)
            except Exception as e:  # the other cases are run, too
                wrong = f"{type(e).__name__}: {e}"
        passed, failed = passed + (not wrong), failed + bool(wrong)
        print(f"FAIL  {name}: {wrong}" if wrong else f"ok    {name}")
    if word and not passed + failed:
        print(f'no case has "{word}" in its name')
    print(f"{passed} passed, {failed} failed")
    return failed > 0 or not passed


if __name__ == "__main__":
    sys.exit(main())
