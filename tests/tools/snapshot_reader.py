#!/usr/bin/env python3
"""Read snapshot files without the library: a second reader, written from lib/snapshot/FORMAT.md and from nothing else.

  snapshot_reader.py info FILE                 what the file says of itself, for people
  snapshot_reader.py verify [OPTIONS] FILE...  checks everything; a line for each: "FILE: ok" or "FILE: what is wrong"
  snapshot_reader.py dump [OPTIONS] FILE       JSON: identity, small sections, and of each section its sizes and the
                                               SHA-256 of its raw bytes; checks everything on the way

Ends with 0 if all is well, with 1 if a file is bad, with 2 if it was called wrongly. What the file cannot tell of
itself (the geometry of the model's KV, the salt) can be given with options, and is checked where it is given. Needs the
Debian packages python3-xxhash and python3-zstandard.
"""
import argparse
import hashlib
import json
import os
import struct
import sys

import xxhash
import zstandard

ALIGNMENT, TABLE_ALIGNMENT, PAGE = 576, 64, 128
MAX_SECTIONS, MAX_CHUNK = 1024, 16 << 20
CRITICAL = 1
PREFIX, FULL, STATE = 1, 2, 3

# type: (name, critical)
SECTIONS = {
    1: ("identity", True), 2: ("tokens", True), 3: ("token chain", False), 4: ("media", True),
    16: ("main codes", True), 17: ("main scales", True), 18: ("index codes", True), 19: ("index scales", True),
    20: ("provenance", True), 24: ("windows", True), 25: ("encoder window codes", True),
    26: ("encoder window scales", True), 27: ("decoder window codes", False), 28: ("decoder window scales", False),
    29: ("open rows", True), 40: ("logits", False), 41: ("sampler", False), 64: ("host data", False),
}
OF_PREFIX = {1, 2, 3, 16, 17, 18, 19, 20}
OF_FULL = {24, 25, 26, 29}


class Bad(Exception):
    """What is wrong with the file."""


def need(holds, what):
    if not holds:
        raise Bad(what)


def round_up(n, multiple):
    return -(-n // multiple) * multiple


def xxh64(*pieces):
    state = xxhash.xxh3_64()
    for piece in pieces:
        state.update(piece)
    return state.intdigest()


class Section:
    FORMAT = struct.Struct("<IIIIQQQIIQQ")

    def __init__(self, entry):
        (self.type, self.flags, self.id, self.n_chunks, self.offset, self.stored, self.raw, self.chunk_size, self.codec,
         self.first_chunk, self.checksum) = self.FORMAT.unpack(entry)
        self.critical = self.flags == CRITICAL

    def name(self):
        return SECTIONS[self.type][0] if self.type in SECTIONS else f"section {self.type}"

    def chunk_raw(self, i):
        return min(self.chunk_size, self.raw - i * self.chunk_size)


class Container:
    """Head, table and tail of an open file; `sections` and their bytes."""

    def __init__(self, file):
        self.file = file
        self.size = os.fstat(file.fileno()).st_size
        self.read_head()
        self.read_tail()
        self.place()

    def read(self, offset, n):
        need(0 <= offset and offset + n <= self.size, f"bytes {offset} to {offset + n} are not in the file")
        self.file.seek(offset)
        data = self.file.read(n)
        need(len(data) == n, "the file became shorter while it was read")
        return data

    def read_head(self):
        need(self.size >= 8 and self.read(0, 8) == b"DSV41SNP", "not a snapshot: no magic at its begin")
        need(self.size >= ALIGNMENT + 64, "cut off: too short for head and tail")
        head = self.read(0, ALIGNMENT)
        self.major, self.minor, flags, self.layout_id, zero, checksum = struct.unpack("<HHI32sQQ", head[8:64])
        need(xxh64(head[:56]) == checksum, "checksum of the head")
        need(self.major == 1, f"version {self.major}.{self.minor} is not known")
        need(flags == 0, "flags of the head are not known")
        need(zero == 0 and not any(head[64:]), "the head's zeros are not zero")

    def read_tail(self):
        tail = self.read(self.size - 64, 64)
        (self.table_offset, table_size, n_sections, n_chunks, total, self.file_hash, checksum,
         magic) = struct.unpack("<QQIIQ16sQ8s", tail)
        need(magic == b"DSV41END", "cut off: no magic at its end")
        need(total == self.size, f"the file has {self.size} bytes, its tail says {total}")
        need(n_sections <= MAX_SECTIONS, "too many sections")
        need(table_size == 64 * n_sections + 16 * n_chunks, "size of the table")
        need(self.table_offset + table_size + 64 == total, "the table does not lie in front of the tail")
        table = self.read(self.table_offset, table_size)
        need(xxh64(table, tail[:48], tail[56:]) == checksum, "checksum of the table")
        self.sections = [Section(table[64 * i:64 * i + 64]) for i in range(n_sections)]
        self.chunk_table = table[64 * n_sections:]
        self.chunks = list(struct.iter_unpack("<IIQ", self.chunk_table))

    def place(self):
        """Checks the table and finds where each chunk lies: self.offsets, with the table's at the end."""
        self.offsets, end, n_placed = [], ALIGNMENT, 0
        for section in self.sections:
            need(section.flags in (0, CRITICAL), f"flags of {section.name()}")
            need(1 <= section.chunk_size <= MAX_CHUNK, f"chunk size of {section.name()}")
            need(section.n_chunks == -(-section.raw // section.chunk_size), f"number of chunks of {section.name()}")
            need(section.first_chunk == n_placed, f"first chunk of {section.name()}")
            n_placed += section.n_chunks
            need(n_placed <= len(self.chunks), f"{section.name()} has chunks beyond the table")
            own = self.chunk_table[16 * section.first_chunk:16 * n_placed]
            need(xxh64(own) == section.checksum, f"checksum of the chunk entries of {section.name()}")
            stored_sum, codecs = 0, {0}
            for i in range(section.n_chunks):
                stored, codec, _ = self.chunks[section.first_chunk + i]
                raw = section.chunk_raw(i)
                need(codec in (0, 1), f"codec {codec} is not known")
                need(stored == raw if codec == 0 else 1 <= stored < raw, f"stored size of a chunk of {section.name()}")
                self.offsets.append(round_up(end, ALIGNMENT))
                end = self.offsets[-1] + stored
                stored_sum += stored
                codecs.add(codec)
            need(section.codec == max(codecs), f"codec of {section.name()}")
            need(section.stored == stored_sum, f"stored size of {section.name()}")
            need(section.offset == (self.offsets[section.first_chunk] if section.n_chunks else 0),
                 f"offset of {section.name()}")
        need(n_placed == len(self.chunks), "the table has chunks of no section")
        need(self.table_offset == round_up(end, TABLE_ALIGNMENT), "the table does not lie behind the chunks")
        need(len({(s.type, s.id) for s in self.sections}) == len(self.sections), "two sections of one type and id")
        self.offsets.append(self.table_offset)

    def chunk(self, section, i):
        """The raw bytes of a chunk, after its checksum and its padding."""
        index = section.first_chunk + i
        stored, codec, checksum = self.chunks[index]
        data = self.read(self.offsets[index], stored)
        need(xxh64(data) == checksum, f"checksum of chunk {i} of {section.name()}")
        padding = self.read(self.offsets[index] + stored, self.offsets[index + 1] - self.offsets[index] - stored)
        need(not any(padding), f"padding behind chunk {i} of {section.name()}")
        return data if codec == 0 else unpack_frame(data, section.chunk_raw(i), f"chunk {i} of {section.name()}")

    def raw(self, section):
        return b"".join(self.chunk(section, i) for i in range(section.n_chunks))

    def raw_sha256(self, section):
        digest = hashlib.sha256()
        for i in range(section.n_chunks):
            digest.update(self.chunk(section, i))
        return digest.hexdigest()

    def find(self, kind):
        return next((s for s in self.sections if s.type == kind), None)

    def check_file_hash(self):
        state, at = xxhash.xxh3_128(), 0
        while at < self.table_offset:
            piece = self.read(at, min(1 << 20, self.table_offset - at))
            state.update(piece)
            at += len(piece)
        need(state.intdigest() == int.from_bytes(self.file_hash, "little"), "XXH3-128 of the file")


def unpack_frame(data, raw_size, where):
    """One zstd frame with nothing behind it. The first call cannot give more than the content size, so that the second,
    which tells where the frame ends, cannot either."""
    need(data[:4] == b"\x28\xb5\x2f\xfd", f"{where} is no zstd frame")
    try:
        header = zstandard.get_frame_parameters(data)
        need(header.content_size == raw_size, f"content size of the zstd frame of {where}")
        need(header.dict_id == 0, f"{where} needs a dictionary")
        raw = zstandard.ZstdDecompressor().decompress(data)
        frame = zstandard.ZstdDecompressor().decompressobj()
        need(frame.decompress(data) == raw and frame.eof, f"{where} ends inside its frame")
        need(not frame.unused_data, f"{where} has bytes behind its frame")
    except zstandard.ZstdError as error:
        raise Bad(f"{where}: {error}") from error
    need(len(raw) == raw_size, f"raw size of {where}")
    return raw


class Fields:
    """Takes the fields of a section one after the other."""

    def __init__(self, data, name):
        self.data, self.name, self.at = data, name, 0

    def bytes(self, n):
        need(n <= len(self.data) - self.at, f"{self.name} is too short")
        self.at += n
        return self.data[self.at - n:self.at]

    def get(self, form):
        values = struct.unpack("<" + form, self.bytes(struct.calcsize("<" + form)))
        return values[0] if len(values) == 1 else values

    def numbers(self, n):
        return list(struct.unpack(f"<{n}Q", self.bytes(8 * n)))

    def text(self):
        try:
            return self.bytes(self.get("I")).decode()
        except UnicodeDecodeError as error:
            raise Bad(f"a text of {self.name} is not UTF-8") from error

    def end(self):
        need(self.at == len(self.data), f"{self.name} is too long")


def parse_identity(data):
    fields = Fields(data, "identity")
    kind, page, n = fields.get("IIQ")
    fingerprint, salt, chain = (fields.bytes(32) for _ in range(3))
    saved = fields.get("Q")
    identity = {"kind": kind, "page": page, "n": n, "fingerprint": fingerprint, "salt": salt, "chain": chain,
                "saved_unix_ns": saved, "numeric_class": fields.text(), "writer": fields.text()}
    fields.end()
    need(kind in (PREFIX, FULL, STATE), f"kind {kind} is not known")
    need(page == PAGE, f"pages of {page} tokens")
    return identity


def parse_media(data, n):
    need(len(data) % 48 == 0, "size of media")
    media, end = [], 0
    for first, count, digest in struct.iter_unpack("<QQ32s", data):
        need(first >= end and count >= 1 and first + count <= n, "media overlap, are empty or lie beyond the tokens")
        media.append((first, count, digest))
        end = first + count
    return media


def parse_provenance(data, identity):
    fields = Fields(data, "provenance")
    ranges = []
    n, r = identity["n"], identity["n"] % PAGE
    for _ in range(fields.get("I")):
        first, n_hits = fields.get("QI")
        need(not ranges or first > ranges[-1][0], "ranges of provenance do not ascend")
        ranges.append((first, fields.numbers(n_hits)))
    fields.end()
    if identity["kind"] == STATE:
        need(ranges or r == 0, "no provenance")
        need(not ranges or ranges[0][0] in (0, n - r), "begin of the provenance")
    else:
        need(bool(ranges) == (n > 0) and (not ranges or ranges[0][0] == 0), "begin of the provenance")
    need(not ranges or ranges[-1][0] < n, "provenance goes beyond the tokens")
    return ranges


def parse_windows(data, n):
    fields = Fields(data, "windows")
    end, encoder, decoder = fields.get("QII")
    need(end == n, "windows do not end where the tokens do")
    need(encoder in (0, 1) and decoder in (0, 1), "flags of windows")
    windows = {}
    for name, present in (("encoder", encoder), ("decoder", decoder)):
        floor, low = fields.get("QQ")
        need(floor <= low <= n if present else floor == low == 0, f"rows of the {name} windows")
        windows[name] = (floor, low) if present else None
    windows["open_from"] = fields.get("Q")
    need(windows["open_from"] % 2 == 0 and windows["open_from"] <= n, "first open row")
    windows["hits"] = fields.numbers(fields.get("I"))
    fields.end()
    return windows


def parse_sampler(data):
    fields = Fields(data, "sampler")
    version, n_bytes = fields.get("IQ")
    fields.bytes(n_bytes)
    fields.end()
    need(version == 1, f"sampler version {version} is not known")
    return {"version": version, "bytes": n_bytes}


def framed(*parts):
    return b"".join(struct.pack("<Q", len(part)) + part for part in parts)


def page_chain(parent, page, ids, media):
    """The chain behind the ids (their bytes) of page number `page`."""
    marks = [(first - page * PAGE, digest) for first, _, digest in media if first // PAGE == page]
    text = parent + struct.pack("<QQ", len(ids) // 4, len(marks)) + ids
    return hashlib.sha256(text + b"".join(struct.pack("<I", at) + digest for at, digest in marks)).digest()


def check_chain(identity, layout_id, tokens, links, media, salt):
    n_pages = identity["n"] // PAGE
    need(len(links) == 32 * (n_pages + 1), "size of the token chain")
    links = [links[i:i + 32] for i in range(0, len(links), 32)]
    need(links[-1] == identity["chain"], "the chain of the identity is not the last of the token chain")
    root = None
    if salt is not None:
        root = hashlib.sha256(framed(layout_id, identity["fingerprint"], salt)).digest()
    for page, link in enumerate(links):
        parent = links[page - 1] if page else root
        if parent is None:
            continue  # the salt is not in the file
        ids = tokens[4 * PAGE * page:4 * PAGE * (page + 1)]
        need(page_chain(parent, page, ids, media) == link, f"the token chain of page {page} does not fit the tokens")


def check_presence(identity, present):
    missing = OF_PREFIX - present
    if identity["kind"] == STATE:
        need(missing == {2, 3}, "a state has neither tokens nor chain, and all else of a prefix")
        need(present & OF_FULL in (set(), OF_FULL), "windows and open rows come together")
    else:
        need(not missing, "missing: " + ", ".join(SECTIONS[t][0] for t in sorted(missing)))
        want = OF_FULL if identity["kind"] == FULL else set()
        need(present & OF_FULL == want, "sections of windows do not fit the kind of the file")


def n_entries(n_tokens, ratio):
    """Of one field, in all pages: full ones and the last."""
    return n_tokens // PAGE * (PAGE // ratio) + n_tokens % PAGE // ratio


def check_global(sizes, n, options):
    """Planes of the pages. n: tokens whose entries are in the file."""
    for codes, factor in ((16, 8), (18, 16)):
        need(sizes[codes] == factor * sizes[codes + 1], f"{SECTIONS[codes][0]} do not fit their scales")
    need(n > 0 or sizes[16] == sizes[18] == 0, "records of no token")
    for codes, dim in ((16, options.head_dim), (18, options.index_head_dim)):
        if not dim:
            continue
        need(sizes[codes] % (dim // 2) == 0, f"size of {SECTIONS[codes][0]}")
        if options.ratios:
            entries = sum(n_entries(n, ratio) for ratio in options.ratios)
            need(sizes[codes] == entries * dim // 2, f"size of {SECTIONS[codes][0]}")


def check_windows(sizes, windows, n, options):
    for name, codes, scales, layers in (("encoder", 25, 26, 0), ("decoder", 27, 28, 1)):
        rows = windows[name] and n - windows[name][1]
        there = {t for t in (codes, scales) if t in sizes}
        need(len(there) == (0 if rows is None else 2), f"sections of the {name} windows do not fit their flag")
        if rows is None:
            continue
        need(sizes[codes] == 32 * sizes[scales], f"codes and scales of the {name} windows do not fit each other")
        need(sizes[codes] % (32 * rows) == 0 if rows else sizes[codes] == 0, f"size of the {name} windows")
        if options.head_dim:
            need(sizes[codes] % options.head_dim == 0, f"size of the {name} windows")
            if options.layers:
                need(sizes[codes] == rows * options.layers[layers] * options.head_dim, f"size of the {name} windows")
    # 8 slots of 2 rows of head_dim numbers, and head_dim is a multiple of 32.
    need(sizes[29] % (8 * 2 * 32 * 4) == 0, "size of the open rows")
    if options.head_dim and options.ratios:
        need(sizes[29] == options.ratios.count(2) * 8 * 2 * options.head_dim * 4, "size of the open rows")


def check_content(file, options):
    """What the sections say of each other. Gives what dump prints of them."""
    for section in file.sections:
        if section.type not in SECTIONS:
            need(not section.critical, f"critical section of the unknown type {section.type}")
            continue
        need(section.critical == SECTIONS[section.type][1], f"critical flag of {section.name()}")
        need(section.id == 0 or section.type == 64, f"id of {section.name()}")
    sizes = {s.type: s.raw for s in file.sections if s.type in SECTIONS}
    data = {t: file.raw(file.find(t)) for t in (1, 2, 3, 4, 20, 24, 41) if t in sizes}
    need(1 in data, "missing: identity")
    identity = parse_identity(data[1])
    check_presence(identity, set(sizes))
    n, state = identity["n"], identity["kind"] == STATE
    media = parse_media(data.get(4, b""), n)
    salt = options.salt
    if salt is None and identity["salt"] == hashlib.sha256(b"").digest():
        salt = b""
    need(salt is None or identity["salt"] == hashlib.sha256(salt).digest(), "the file was saved with another salt")
    if not state:
        need(sizes[2] == 4 * n, "size of the tokens")
        check_chain(identity, file.layout_id, data[2], data[3], media, salt)
    out = {"identity": {k: v.hex() if isinstance(v, bytes) else v for k, v in identity.items()},
           "tokens": n, "chain_from_root": not state and salt is not None,
           "media": [{"first": first, "n": count, "sha256": digest.hex()} for first, count, digest in media],
           "provenance": [{"first": first, "hits": hits} for first, hits in parse_provenance(data[20], identity)]}
    check_global(sizes, n % PAGE if state else n, options)
    if 24 in data:
        out["windows"] = parse_windows(data[24], n)
        check_windows(sizes, out["windows"], n, options)
    else:
        need(27 not in sizes and 28 not in sizes, "decoder windows without their head")
    need(40 not in sizes or sizes[40] == 4 * (options.vocab or sizes[40] // 4), "size of the logits")
    if 41 in data:
        out["sampler"] = parse_sampler(data[41])
    return out


def describe(file, options):
    out = {"version": f"{file.major}.{file.minor}", "layout_id": file.layout_id.hex(), "bytes": file.size}
    out.update(check_content(file, options))
    out["sections"] = [
        {"type": s.type, "name": s.name(), "id": s.id, "critical": s.critical, "raw": s.raw, "stored": s.stored,
         "chunks": s.n_chunks, "chunk_size": s.chunk_size, "codec": s.codec, "sha256": file.raw_sha256(s)}
        for s in file.sections]
    file.check_file_hash()
    return out


def info(path):
    with open(path, "rb") as data:
        file = Container(data)
        section = file.find(1)
        need(section is not None and section.raw <= 1 << 20, "missing: identity")
        identity = parse_identity(file.raw(section))
    kind = {PREFIX: "prefix", FULL: "full", STATE: "state"}[identity["kind"]]
    print(f"{path}: {kind}, {identity['n']} tokens, {file.size} bytes, version {file.major}.{file.minor}")
    print(f"  fingerprint    {identity['fingerprint'].hex()}")
    print(f"  layout         {file.layout_id.hex()}")
    print(f"  numeric class  {identity['numeric_class']}, written by {identity['writer']}")
    for s in file.sections:
        print(f"  {s.name():22} id {s.id:<4} raw {s.raw:>12} stored {s.stored:>12} chunks {s.n_chunks:>6}"
              f"{' critical' if s.critical else ''}")


def verify(path, options):
    with open(path, "rb") as data:
        file = Container(data)
        for section in file.sections:
            file.raw_sha256(section)
        file.check_file_hash()
        if not options.container:
            check_content(file, options)


def numbers(text):
    return [int(number) for number in text.split(",")]


def parse_arguments():
    parser = argparse.ArgumentParser(description="Reads snapshot files by lib/snapshot/FORMAT.md.")
    commands = parser.add_subparsers(dest="command", required=True)
    geometry = argparse.ArgumentParser(add_help=False)
    geometry.add_argument("--head-dim", type=int, help="of main records and windows")
    geometry.add_argument("--index-head-dim", type=int, help="of indexer keys")
    geometry.add_argument("--ratios", type=numbers, help="of the KV sources, as 2,2,2,1")
    geometry.add_argument("--layers", type=numbers, help="with windows: of the encoder, of the decoder, as 20,20")
    geometry.add_argument("--vocab", type=int, help="entries of the vocabulary")
    geometry.add_argument("--salt", type=bytes.fromhex, help="hexadecimal")
    commands.add_parser("info").add_argument("file")
    several = commands.add_parser("verify", parents=[geometry])
    several.add_argument("--container", action="store_true", help="head, table, tail and chunks alone")
    several.add_argument("files", nargs="+")
    commands.add_parser("dump", parents=[geometry]).add_argument("file")
    return parser.parse_args()


def main():
    options, bad = parse_arguments(), 0
    if options.command == "verify":
        for path in options.files:
            try:
                verify(path, options)
                print(f"{path}: ok")
            except (Bad, OSError) as error:
                bad = 1
                print(f"{path}: {error}")
        return bad
    try:
        if options.command == "info":
            info(options.file)
        else:
            with open(options.file, "rb") as data:
                json.dump(describe(Container(data), options), sys.stdout, indent=1)
                print()
    except (Bad, OSError) as error:
        print(f"{options.file}: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
