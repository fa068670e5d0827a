#!/usr/bin/env python3
"""Write lib/model/engram_vocab_map.inc: the Engram compression map of the released tokenizer, packed.

  python3 scripts/make_engram_vocab_map.py tokenizer.json lib/model/engram_vocab_map.inc

tokenizer.json: the DeepSeek-V4 or V4.1 file (their base vocabularies and hence the maps are equal). The rule is model.md
6.2: ids whose normalised texts are equal share one compressed id. The result must have the SHA-256 below, whatever the
Unicode version of this Python.

Packed form, read by engram_vocab_map.cpp: an entry is new (next unused compressed id) or a copy. For every copy, in
ascending id order, two unsigned LEB128 numbers: distance of its id from the previous copy's id (the first from -1), and
the difference of its value from the previous copy's value, zigzag coded. Base64, in C++ string literals.
"""
import base64
import hashlib
import json
import struct
import sys
import unicodedata

SHA256 = "c60a86322ec17b4142bfef3c57a8d81fb428550cdf487f88a4320cb59fe46481"
WHITE_SPACE = "\t\n\v\f\r \x85\xa0\u1680" + "".join(map(chr, range(0x2000, 0x200b))) + "\u2028\u2029\u202f\u205f\u3000"


def byte_alphabet():
    """Symbol of the byte-level alphabet -> byte."""
    plain = [*range(0x21, 0x7f), *range(0xa1, 0xad), *range(0xae, 0x100)]
    table, n = {chr(b): b for b in plain}, 0
    for b in range(256):
        if b not in plain:
            table[chr(256 + n)] = b
            n += 1
    return table


def normalise(text):
    text = unicodedata.normalize("NFD", unicodedata.normalize("NFKC", text))
    text = "".join(c for c in text if not unicodedata.category(c).startswith("M"))
    text = "".join(c.lower() for c in text)  # one character at a time: no final sigma
    out = ""
    for c in text:
        blank = c in " \t\r\n"
        if not (blank and out.endswith(" ")):
            out += " " if blank else c
    return out if out == " " else out.strip(WHITE_SPACE)


def compression_map(tokenizer):
    alphabet = byte_alphabet()
    tokens = {i: (s, None) for s, i in tokenizer["model"]["vocab"].items()}
    tokens.update({t["id"]: (t["content"], t["content"]) for t in tokenizer["added_tokens"]})
    seen, out = {}, []
    for i in range(len(tokens)):
        raw, text = tokens[i]
        if text is None:
            text = bytes(alphabet[c] for c in raw).decode("utf-8", errors="replace")
        key = raw if "\ufffd" in text else normalise(text) or text
        out.append(seen.setdefault(key, len(seen)))
    return out


def leb128(value):
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7f | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def pack(table):
    out, fresh, last_id, last_value = bytearray(), 0, -1, 0
    for i, value in enumerate(table):
        if value == fresh:
            fresh += 1
            continue
        step = value - last_value
        out += leb128(i - last_id) + leb128(step * 2 if step >= 0 else -step * 2 - 1)
        last_id, last_value = i, value
    return bytes(out)


def main():
    source, target = sys.argv[1:]
    with open(source, encoding="utf-8") as f:
        table = compression_map(json.load(f))
    digest = hashlib.sha256(struct.pack("<%di" % len(table), *table)).hexdigest()
    if digest != SHA256:
        sys.exit("the map has %d entries, %d values and SHA-256 %s" % (len(table), max(table) + 1, digest))
    text = base64.b64encode(pack(table)).decode()
    with open(target, "w") as f:
        f.write("// Written by scripts/make_engram_vocab_map.py. The Engram compression map of the released tokenizer, packed.\n")
        for at in range(0, len(text), 112):
            f.write('"%s"\n' % text[at:at + 112])


main()
