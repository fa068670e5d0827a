"""A peer's state file beside a snapshot, in one run: llama.cpp through its Python package.

    pip install llama-cpp-python gguf numpy
    python3 bench/peers/llama_state.py build/bin/bench_session [--folder /tmp] [--tokens 4096] [--rounds 8]

The peer gets a model made here, of random weights: what its state file holds is KV in 16 bits, and that is copied
whatever it means. Its layers are few and narrow so that the prefill takes seconds; its KV takes 16 KiB a token, so
that 4,096 tokens weigh about as much as 64K tokens of the released shape.

Rounds alternate: the peer's save, the same number of bytes written past the page cache (O_DIRECT), the same with the
peer's file synced; then its restore, warm and cold, beside a read past the page cache. Best of the rounds counts, as
in BM_SnapshotSave and BM_SnapshotRestore, which run afterwards and print their own references.
"""
import argparse
import ctypes
import json
import mmap
import os
import subprocess
import sys
import tempfile
import time

LAYERS, WIDTH, HEADS, FEED_FORWARD, VOCABULARY = 8, 512, 8, 512, 512
PIECE_BYTES = 4 << 20


def write_model(path, n_tokens):
    import gguf
    import numpy as np

    random = np.random.default_rng(1)

    def matrix(rows, columns):
        return (random.standard_normal((rows, columns)) * columns**-0.5).astype(np.float16)

    out = gguf.GGUFWriter(path, "llama")
    out.add_block_count(LAYERS)
    out.add_context_length(n_tokens)
    out.add_embedding_length(WIDTH)
    out.add_feed_forward_length(FEED_FORWARD)
    out.add_head_count(HEADS)
    out.add_head_count_kv(HEADS)
    out.add_layer_norm_rms_eps(1e-6)
    out.add_vocab_size(VOCABULARY)
    out.add_tokenizer_model("no_vocab")
    out.add_tensor("token_embd.weight", matrix(VOCABULARY, WIDTH))
    out.add_tensor("output.weight", matrix(VOCABULARY, WIDTH))
    out.add_tensor("output_norm.weight", np.ones(WIDTH, np.float32))
    for layer in range(LAYERS):
        name = f"blk.{layer}."
        for norm in ("attn_norm", "ffn_norm"):
            out.add_tensor(f"{name}{norm}.weight", np.ones(WIDTH, np.float32))
        for projection in ("attn_q", "attn_k", "attn_v", "attn_output"):
            out.add_tensor(f"{name}{projection}.weight", matrix(WIDTH, WIDTH))
        for projection in ("ffn_gate", "ffn_up"):
            out.add_tensor(f"{name}{projection}.weight", matrix(FEED_FORWARD, WIDTH))
        out.add_tensor(f"{name}ffn_down.weight", matrix(WIDTH, FEED_FORWARD))
    out.write_header_to_file()
    out.write_kv_data_to_file()
    out.write_tensors_to_file()
    out.close()


class Peer:
    """A context of llama.cpp with `n_tokens` tokens in its sequence 0."""

    def __init__(self, model_path, n_tokens):
        import llama_cpp as api

        self.api = api
        # Its log goes to stderr unless there is a callback; it must outlive the library's use.
        self.quiet = api.llama_log_callback(lambda level, text, user: None)
        api.llama_log_set(self.quiet, None)
        api.llama_backend_init()
        options = api.llama_model_default_params()
        self.model = api.llama_model_load_from_file(model_path.encode(), options)
        context = api.llama_context_default_params()
        context.n_ctx, context.n_batch, context.n_ubatch = n_tokens, 512, 512
        context.n_threads = context.n_threads_batch = os.cpu_count()
        self.context = api.llama_init_from_model(self.model, context)
        if not self.context:
            sys.exit("llama.cpp does not open the model that was made for it")
        self.tokens = (api.llama_token * n_tokens)(*[token * 7 % VOCABULARY for token in range(n_tokens)])
        for first in range(0, n_tokens, 512):
            part = (api.llama_token * min(512, n_tokens - first))(*self.tokens[first : first + 512])
            if api.llama_decode(self.context, api.llama_batch_get_one(part, len(part))) != 0:
                sys.exit("llama.cpp does not decode")

    def save(self, path):
        return self.api.llama_state_seq_save_file(self.context, path.encode(), 0, self.tokens, len(self.tokens))

    def restore(self, path):
        n = ctypes.c_size_t()
        room = (self.api.llama_token * len(self.tokens))()
        done = self.api.llama_state_seq_load_file(self.context, path.encode(), 0, room, len(room), ctypes.byref(n))
        if done == 0 or n.value != len(self.tokens):
            sys.exit("llama.cpp does not restore what it saved")


def sync(path, forget=False):
    file = os.open(path, os.O_RDONLY)
    os.fsync(file)
    if forget:
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(file)


def write_direct(path, n_bytes, piece):
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_DIRECT, 0o600)
    for at in range(0, n_bytes, PIECE_BYTES):
        os.pwrite(file, memoryview(piece)[: min(PIECE_BYTES, (n_bytes - at + 4095) // 4096 * 4096)], at)
    os.close(file)


def read_direct(path, n_bytes, piece):
    file = os.open(path, os.O_RDONLY | os.O_DIRECT)
    for at in range(0, n_bytes, PIECE_BYTES):
        os.preadv(file, [piece], at)
    os.close(file)


def seconds(body):
    start = time.perf_counter()
    body()
    return time.perf_counter() - start


def measure_peer(folder, n_tokens, n_rounds):
    model, state, raw = (os.path.join(folder, name) for name in ("peer.gguf", "peer.state", "raw"))
    write_model(model, n_tokens)
    peer = Peer(model, n_tokens)
    n_bytes = peer.save(state)
    piece = mmap.mmap(-1, PIECE_BYTES)

    def save_synced():
        peer.save(state)
        sync(state)

    bodies = {
        "save": lambda: peer.save(state),
        "save, synced": save_synced,
        "write past the page cache": lambda: write_direct(raw, n_bytes, piece),
        "restore warm": lambda: peer.restore(state),
        "restore cold": lambda: peer.restore(state),
        "read past the page cache": lambda: read_direct(raw, n_bytes, piece),
    }
    best = {}
    for _ in range(n_rounds):
        for name, body in bodies.items():
            if name == "restore cold":
                sync(state, forget=True)
            best[name] = min(best.get(name, float("inf")), seconds(body))
    return n_bytes, best


def measure_ours(program):
    pattern = "BM_SnapshotSave|BM_SnapshotRestore/.*131072"
    command = [program, f"--benchmark_filter={pattern}", "--benchmark_format=json"]
    return json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)["benchmarks"]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("program", help="bench_session")
    parser.add_argument("--folder", default=None, help="where the files lie (default: that of temporary files)")
    parser.add_argument("--tokens", type=int, default=4096)
    parser.add_argument("--rounds", type=int, default=8)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        n_bytes, best = measure_peer(folder, options.tokens, options.rounds)
    print(f"llama.cpp: {options.tokens} tokens, {n_bytes} bytes, {n_bytes / options.tokens:.0f} bytes a token")
    for name, time_taken in best.items():
        line = f"  {name:28} {time_taken * 1e3:8.1f} ms {n_bytes / time_taken / 1e9:6.2f} GB/s"
        for subject, reference in (("save", "write past the page cache"), ("restore", "read past the page cache")):
            if name.startswith(subject):
                line += f"  ratio {best[reference] / time_taken:.2f}"
        print(line)
    print("snapshots:")
    for line in measure_ours(options.program):
        name, rate = line["name"].split("/iterations")[0], line["bytes_per_second"] / 1e9
        print(f"  {name:34} {line['best_ms']:8.1f} ms {rate:6.2f} GB/s on average  ratio {line['ratio']:.2f}")


if __name__ == "__main__":
    main()
