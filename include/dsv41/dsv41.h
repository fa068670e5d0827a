/*
 * dsv41.h: the C API of libdsv41, an embeddable runtime of DeepSeek-V4.1-Flash.
 *
 * A runtime holds what the host lends (memory, log, clock, threads). A model is a checkpoint folder opened on a
 * backend. A pool is KV memory of one model. A session is one conversation: a list of tokens and its KV state in a
 * pool. A sampler turns logits into tokens. Text functions turn messages into tokens and tokens into text.
 *
 * A complete program (prints the model's answer; argument: the checkpoint folder):
 *
 *     #include <dsv41/dsv41.h>
 *     #include <stdio.h>
 *     #include <string.h>
 *     static int32_t print_token(void *user, const dsv41_token_event *event) {
 *       return fwrite(event->text, 1, event->text_size, (FILE *)user) != event->text_size;
 *     }
 *     int main(int argc, char **argv) {
 *       const char *request = "{\"messages\": [{\"role\": \"user\", \"content\": \"What is 4 + 5?\"}]}";
 *       dsv41_runtime *runtime = NULL; dsv41_model *model = NULL; dsv41_pool *pool = NULL;
 *       dsv41_session *session = NULL; dsv41_sampler *sampler = NULL;
 *       int32_t tokens[256];
 *       dsv41_error error; dsv41_model_options open; dsv41_input prompt; dsv41_generate_options generate;
 *       dsv41_error_init(&error, sizeof error);
 *       dsv41_model_options_init(&open, sizeof open);
 *       dsv41_input_init(&prompt, sizeof prompt);
 *       dsv41_generate_options_init(&generate, sizeof generate);
 *       open.folder = argc > 1 ? argv[1] : "samples/nano"; open.folder_size = strlen(open.folder);
 *       prompt.tokens = tokens; generate.token_fn = print_token; generate.token_user = stdout;
 *       if (dsv41_runtime_create(NULL, &runtime, &error) || dsv41_model_open(runtime, &open, &model, &error) ||
 *           dsv41_pool_create(model, NULL, &pool, &error) || dsv41_session_create(pool, NULL, &session, &error) ||
 *           dsv41_sampler_create(model, NULL, &sampler, &error) ||
 *           dsv41_chat_render(model, request, strlen(request), tokens, 256, &prompt.n_tokens, &error) ||
 *           dsv41_prefill(session, &prompt, NULL, NULL, &error) ||
 *           dsv41_generate(session, sampler, &generate, NULL, &error))
 *         fprintf(stderr, "%s: %s\n", error.place, error.message);
 *       dsv41_sampler_release(sampler); dsv41_session_release(session); dsv41_pool_release(pool);
 *       dsv41_model_release(model); dsv41_runtime_release(runtime);
 *       return error.code != 0;
 *     }
 *
 * CONVENTIONS (they hold for every function unless its comment says otherwise)
 *
 *  1. Handles. dsv41_runtime and the other opaque types are handles. A creating function writes the handle only on
 *     success and leaves *out untouched otherwise. dsv41_X_release gives the handle back; NULL is allowed. A child
 *     keeps its parents alive, so any order of release is right: memory goes when the last handle that needs it
 *     goes. A handle must not be used after its release; handles carry a mark, and one of a wrong type is answered
 *     with DSV41_INVALID_ARG.
 *  2. Errors. A function that can fail returns a status: DSV41_OK (0), a positive value that is not an error, or a
 *     negative error. Its last parameter is a dsv41_error that the caller owns; NULL is allowed. It is written by
 *     every such call (cleared on success). A failed call leaves its object and its outputs as they were; where
 *     something differs, the comment says so. After DSV41_INTERNAL the object is poisoned: every call but release
 *     answers DSV41_POISONED. Any function may answer DSV41_INVALID_ARG (a pointer that must not be NULL, a value
 *     out of range), DSV41_STRUCT_SIZE, DSV41_BUSY, DSV41_POISONED, DSV41_NO_MEMORY and DSV41_INTERNAL; other codes
 *     are listed at the function.
 *  3. Structs. The first field is struct_size = sizeof the struct as the caller knows it; dsv41_X_init sets it and
 *     the defaults. In every options struct zero means the default, so a zeroed struct with struct_size set is right
 *     too; a NULL options pointer means all defaults. Fields are only ever appended. Input: a smaller struct_size (8
 *     or more) is accepted, missing fields are defaults; a larger one is accepted if the bytes that this library
 *     does not know are zero. Output: filled up to the caller's struct_size. reserved must be zero.
 *  4. Text is UTF-8 with an explicit size in bytes, without a terminating zero, unless a type is said to be NUL-
 *     terminated.
 *  5. Output buffers. (buffer, capacity, &n): *n gets the number of elements that exist. capacity 0 only asks
 *     (buffer may be NULL) and answers DSV41_OK; a smaller capacity than needed answers DSV41_BUFFER_TOO_SMALL, sets
 *     *n and writes nothing else.
 *  6. Threads. Runtime, model, pool and store: any thread at any time. Session, sampler, textstream, chatparse,
 *     snapshot, match, store_iter: one thread at a time, may move; a second thread gets DSV41_BUSY. Different sessions
 *     run at once. Cancel tokens and functions that take no handle: any thread. Release: any thread, but no other call
 *     on that handle may be running or follow.
 *  7. Callbacks run on the calling thread (alloc, free, log, clocks and dsv41_object_store also on threads of the
 *     library). No lock of a handle is held meanwhile. Inside a callback only functions marked "callback-safe" may be
 *     called; others answer DSV41_BUSY. Every release function is callback-safe. Inside alloc, free, clock, log and
 *     dsv41_object_store callbacks only those of them that take no handle, and the cancel functions, may be called. A
 *     progress callback with DSV41_PROGRESS_DURABLE_POINT may also save and put the session whose call is running.
 *     Callbacks must return normally: no longjmp, no C++ exception.
 *  8. Units are in the names: _tokens, _bytes, _ns (nanoseconds). Positions and counts of tokens are uint64_t, token
 *     ids int32_t.
 *  9. Results. bit-identical: the same bytes as the run that the report names as its reference, on the same backend:
 *     LIVE, the same calls in a session that was never cut and found nothing cached; COLD, one prefill over all tokens.
 *     exact: the same mathematics, roundings may differ. approximate: a bounded replay of the encoder took part, now or
 *     when KV that the call builds on was computed; the reference REPLAY is a run with hits at the positions that
 *     dsv41_session_provenance lists. On the CPU backends results are the same bytes whatever the chunks, the number of
 *     threads and the other sessions.
 * 10. The library never prints, exits, aborts, installs signal handlers or reads the environment. Its threads are named
 *     dsv41-* and block all signals but SIGPROF and those that a thread brings upon itself (SIGSEGV, SIGBUS, SIGFPE,
 *     SIGILL, SIGTRAP, SIGABRT, SIGSYS): the others reach threads of the host's.
 * 11. Stability. Before 1.0 the file name is libdsv41.so.0. Status numbers, metric ids and capability ids are never
 *     reused. In this ABI there are fixed-width integers, float, double, size_t, pointers and structs behind
 *     pointers.
 *
 * KV MEMORY, SHARING AND REPLAY
 *
 *  What is kept where. Global KV, the records that every later token attends to, lies in pages of the pool, 128 tokens
 *  each. A complete page is sealed: it never changes again, sessions with the same tokens (and salt) share it, and when
 *  nobody holds it, it stays cached until its place is needed. Window rows, what each layer keeps of the last 128
 *  tokens, lie in a slot that a session gets with its first call that runs the model and keeps until reset or release.
 *  Copies of them go into the window cache in host memory, for some minutes, when a prefill or sync ends and when a
 *  session is cut, reset or released: they serve a session that comes back to exactly that position.
 *
 *  Cuts. dsv41_session_fork and dsv41_session_truncate go to any position and never run the model. A fork shares
 *  everything with its parent, whatever the length; the first of them that writes copies one page and its window slot.
 *
 *  Hits. dsv41_sync takes the whole list of tokens, as a host without state has it, and starts from what computes
 *  least: the session's own tokens, a window entry, cached pages, a store. dsv41_prefill of an empty session does the
 *  same.
 *
 *  Replay. At a position whose window rows are gone (a cut by more than a few tokens, a hit on pages alone) the next
 *  call that runs the model has to compute them again. Encoder, by policy: BOUNDED runs the last 128 tokens before the
 *  hit once more: cheap whatever the length, approximate. EXACT runs as many tokens as an exact result takes, up to
 *  128 per layer, and builds on nothing approximate. REFUSE replays nothing: where a call may not start at token 0
 *  either, it answers DSV41_REPLAY_REQUIRED. The decoder half sees the last 128 tokens of a prompt in any case
 *  (DSV41_DECODER_BOUNDED): that is how the model is meant to run and makes nothing approximate. A replay changes no
 *  global KV below its hit position.
 *
 *  Reports. Every call tells what it did, dsv41_session_replay_plan what dsv41_sync would do, dsv41_replay_info what a
 *  cut leaves to do. For exact results throughout, set dsv41_session_options.encoder to EXACT; afterwards,
 *  dsv41_session_make_exact computes what is approximate again.
 *
 * SNAPSHOTS AND STORES
 *
 *  A snapshot is a session in one file, buffer or stream of the host's: to keep it, or to hand it to another process. It
 *  needs nothing else but the model. A store keeps many sessions in a folder, or as objects of the host's, page by page:
 *  each page once, found by its tokens.
 *
 *  Kinds. PREFIX has the tokens and their global KV: of V4.1-Flash at most 894 bytes a token, 1 % and 16 KiB. It comes
 *  back as a session without window rows, as after a far cut: the next call replays, by policy. FULL has window rows
 *  too (of V4.1-Flash about 3 MiB), by choice logits and the sampler's state, and comes back as it was: it goes on bit
 *  for bit, as if it had never left. Both may have data of the host. Nothing chosen, a save is FULL on the CPU
 *  backends, where a replay takes as long as a step of a prefill, and PREFIX where the session's window rows are
 *  missing. A restore tells each part as restored, to be rebuilt, or absent.
 *
 *  Who may open it. A file names model (fingerprint), KV layout, tokens, salt and numeric class. Restoring with another
 *  model, layout or salt is refused, and so are other tokens than the host expects. Another numeric class is taken
 *  unless the host is strict; what follows is then exact, no longer bit-identical. Session limits, chunks, threads and
 *  the size of the pool do not matter. Looking into a file and checking it takes no model.
 *
 *  Damage. Every byte is checked before it is used: a flipped bit, a cut, a file of something else is an error, never
 *  another session. A load changes nothing unless it succeeds.
 *
 *  Durable. A save to a path goes to a file beside it, which is synced and takes its name: whoever looks, also after a
 *  power cut, finds the old file or the new one, whole. What a save through dsv41_writer promises is the host's.
 *
 *  Stores. dsv41_store_put hands over a session's full pages, and a state: what lies behind the last of them, PREFIX or
 *  FULL as above. A conversation that is put after each turn costs its pages once and one state for each turn. Attached
 *  to a pool (dsv41_pool_attach_store), a store is one more place where dsv41_sync looks, and takes in what is sealed,
 *  if that is wanted. A host can also look itself (dsv41_store_lookup) and restore what was found
 *  (dsv41_store_restore).
 *
 *  What a store keeps. Records are written by a thread of the library, in groups; a record can be found, here and by
 *  other processes, when it is durable. They stay for 72 hours after their last use and within a budget of bytes;
 *  beyond it the least recently used go first, the end of a conversation before its beginning, never what is pinned or
 *  held by a match. One process writes a folder, any number read it. A damaged record is set aside and is a miss from
 *  then on: what is found again ends before it.
 *
 *  Costs. Saving streams: memory for a chunk of 256 KiB as it is and one as it is stored, whatever the length. Where a
 *  path is given, a thread of the library writes or reads beside the call, and takes about 10 MiB while it lasts.
 *  Restoring copies each page once; pages that the pool has already are shared. Most of KV is noise to a compressor:
 *  compressed, the nano model's has 0.95 of its size, its window rows 0.8.
 */
#ifndef DSV41_DSV41_H
#define DSV41_DSV41_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* -------------------------------------------------------------------------------------------- export and version */

#if defined(__GNUC__)
#define DSV41_API __attribute__((visibility("default")))
#else
#define DSV41_API
#endif

#define DSV41_VERSION_MAJOR 0
#define DSV41_VERSION_MINOR 1
#define DSV41_VERSION_PATCH 0
/* What dsv41_abi_version() of the matching library returns. */
#define DSV41_HEADER_ABI ((uint32_t)((DSV41_VERSION_MAJOR << 16) | DSV41_VERSION_MINOR))

/* -------------------------------------------------------------------------------------------------- status codes */

/* What fallible functions return: one of the values below. */
typedef int32_t dsv41_status;

enum {
  DSV41_OK = 0,                        /* success */
  DSV41_PARTIAL = 1,                   /* some progress or some items; read the result */
  DSV41_MISS = 2,                      /* lookup found nothing usable */
  DSV41_END = 3,                       /* end of sequence or iterator */
  DSV41_NOT_ADMITTED = 4,              /* the store declined to save */
  DSV41_INVALID_ARG = -1,              /* null, out of range or conflicting argument */
  DSV41_STRUCT_SIZE = -2,              /* unknown or too small struct_size */
  DSV41_ABI_VERSION = -3,              /* requested version is newer than the library */
  DSV41_UNSUPPORTED = -4,              /* valid request that this build or backend cannot serve */
  DSV41_STATE = -5,                    /* call in the wrong order */
  DSV41_BUSY = -6,                     /* object in use by another thread or inside a callback */
  DSV41_BUFFER_TOO_SMALL = -7,         /* buffer too small; the needed size is in the output */
  DSV41_LIMIT = -8,                    /* hard limit of the model or of a format */
  DSV41_POISONED = -9,                 /* earlier internal failure; only release is allowed */
  DSV41_NO_MEMORY = -20,               /* the host allocator failed */
  DSV41_NO_DEVICE_MEMORY = -21,        /* the device allocator failed */
  DSV41_POOL_FULL = -22,               /* no free pages; trim, release or save something */
  DSV41_CONTEXT_FULL = -23,            /* the session's token limit is reached */
  DSV41_CANCELLED = -40,               /* cancelled; the result tells the state */
  DSV41_DEADLINE = -41,                /* deadline passed */
  DSV41_HOST_CALLBACK = -42,           /* a host callback returned an error; its value is in the error struct */
  DSV41_IO = -60,                      /* input or output failed; the OS error is in the error struct */
  DSV41_IO_SHORT = -61,                /* less data than the head promised */
  DSV41_NO_SPACE = -62,                /* no space left */
  DSV41_NOT_FOUND = -63,               /* path or key does not exist */
  DSV41_EXISTS = -64,                  /* path or key exists already */
  DSV41_LOCKED = -65,                  /* held by another process */
  DSV41_PERMISSION = -66,              /* permission denied */
  DSV41_NOT_SNAPSHOT = -80,            /* not a snapshot: the magic does not match */
  DSV41_FORMAT_VERSION = -81,          /* format version cannot be read */
  DSV41_CHECKSUM = -82,                /* checksum mismatch */
  DSV41_CORRUPT = -83,                 /* inconsistent structure although checksums hold */
  DSV41_CODEC_UNAVAILABLE = -84,       /* built without the codec */
  DSV41_MODEL_MISMATCH = -85,          /* model fingerprint differs */
  DSV41_LAYOUT_MISMATCH = -86,         /* KV layout differs */
  DSV41_NUMERIC_MISMATCH = -87,        /* numeric class differs and the policy is strict */
  DSV41_TOKENS_MISMATCH = -88,         /* the caller's tokens differ from the stored ones */
  DSV41_MEDIA_MISMATCH = -89,          /* media digests differ */
  DSV41_NAMESPACE_MISMATCH = -90,      /* salt differs */
  DSV41_SECTION_MISSING = -91,         /* a required part is absent */
  DSV41_REPLAY_REQUIRED = -100,        /* the policy forbids the replay that is needed */
  DSV41_NOT_EXACT = -101,              /* an exact result was demanded and cannot be given */
  DSV41_CHECKPOINT = -120,             /* the weights folder is damaged or incomplete */
  DSV41_CHECKPOINT_UNSUPPORTED = -121, /* other architecture or quantisation */
  DSV41_TOKENIZER = -122,              /* tokenizer file is damaged or of another kind */
  DSV41_BACKEND = -140,                /* device interface error */
  DSV41_DEVICE_LOST = -141,            /* the device is lost; reopen the model */
  DSV41_BACKEND_UNAVAILABLE = -142,    /* no such backend on this machine */
  DSV41_NUMERIC = -143,                /* NaN or infinity in logits or state */
  DSV41_GRAMMAR = -160,                /* grammar cannot be used */
  DSV41_TEMPLATE = -161,               /* messages do not fit the chat format */
  DSV41_INTERNAL = -200                /* a bug; the object is poisoned */
};

/* Detail of a failed call. Caller-owned; pass NULL where it is not wanted. */
typedef struct dsv41_error {
  uint32_t struct_size;
  int32_t code;       /* the status that the call returned */
  int32_t os_error;   /* errno of the failed system call, 0 when none took part */
  int32_t host_code;  /* what the host's callback returned when code is DSV41_HOST_CALLBACK, else 0 */
  char place[96];     /* function that failed, NUL-terminated */
  char message[1936]; /* one or more lines of text, NUL-terminated, cut at a character if too long */
} dsv41_error;

/* ----------------------------------------------------------------------------------------- scalar types, handles */

typedef struct dsv41_runtime dsv41_runtime;       /* any thread */
typedef struct dsv41_cancel dsv41_cancel;         /* any thread, signal handlers too */
typedef struct dsv41_model dsv41_model;           /* any thread */
typedef struct dsv41_pool dsv41_pool;             /* any thread */
typedef struct dsv41_session dsv41_session;       /* one thread at a time */
typedef struct dsv41_sampler dsv41_sampler;       /* one thread at a time */
typedef struct dsv41_textstream dsv41_textstream; /* one thread at a time */
typedef struct dsv41_chatparse dsv41_chatparse;   /* one thread at a time */
typedef struct dsv41_snapshot dsv41_snapshot;     /* one thread at a time */
typedef struct dsv41_store dsv41_store;           /* any thread */
typedef struct dsv41_match dsv41_match;           /* one thread at a time */
typedef struct dsv41_store_iter dsv41_store_iter; /* one thread at a time */

/* ----------------------------------------------------------------------------------------------------- callbacks */

/* Memory. alloc returns `size` bytes aligned as malloc's, or NULL; free gets what alloc returned. Any thread. */
typedef void* (*dsv41_alloc_fn)(void* user, size_t size);
typedef void (*dsv41_free_fn)(void* user, void* memory);

/* Log line without line feed, UTF-8, valid during the call. level: DSV41_LOG_*. Any thread. */
typedef void (*dsv41_log_fn)(void* user, uint32_t level, const char* text, size_t size);

/* Time in nanoseconds: monotonic, or since 1970-01-01 UTC, as the option says. Any thread. */
typedef uint64_t (*dsv41_clock_fn)(void* user);

typedef struct dsv41_progress {
  uint32_t struct_size;
  uint32_t phase; /* DSV41_PHASE_* */
  uint64_t done;  /* units of the phase that are finished */
  uint64_t total; /* all units of the phase, at least 1 */
  uint32_t flags; /* DSV41_PROGRESS_* bits */
  uint32_t reserved0;
} dsv41_progress;

/* The session is at rest between two steps: it has the tokens from before the running call (in a dsv41_sync those of
 * them that it keeps), and may be saved inside this callback: dsv41_snapshot_size, dsv41_snapshot_save_*,
 * dsv41_store_put. Window rows are on the move: only DSV41_SNAPSHOT_PREFIX, which is then the default too. */
#define DSV41_PROGRESS_DURABLE_POINT 1u

/* Progress, valid during the call. A value other than 0 stops the running call, which then answers
 * DSV41_HOST_CALLBACK with that value in dsv41_error.host_code. */
typedef int32_t (*dsv41_progress_fn)(void* user, const dsv41_progress* progress);

typedef struct dsv41_token_event {
  uint32_t struct_size;
  int32_t token;      /* the token that was appended to the session */
  uint64_t token_idx; /* 0 for the first token of the call */
  const char* text;   /* text that this token completed; never a part of a character; not NULL */
  size_t text_size;   /* bytes; 0 while a character is unfinished */
} dsv41_token_event;

/* A token of dsv41_generate, valid during the call. A value other than 0 ends the generation: the call answers
 * DSV41_OK and stop_reason DSV41_STOP_CALLBACK. */
typedef int32_t (*dsv41_token_fn)(void* user, const dsv41_token_event* event);

/* Where the bytes of a snapshot go: in order, on the calling thread. A value other than 0 stops the call, which answers
 * DSV41_HOST_CALLBACK with that value in dsv41_error.host_code. After the last byte sync, then commit; after a failure,
 * also of sync, abort. Exactly one of commit and abort is called; a commit that fails cleans up after itself. */
typedef int32_t (*dsv41_write_fn)(void* user, const void* bytes, size_t size);
typedef int32_t (*dsv41_sync_fn)(void* user);   /* what was written is durable, as far as the host promises it */
typedef int32_t (*dsv41_commit_fn)(void* user); /* the snapshot is complete: make it visible */
typedef void (*dsv41_abort_fn)(void* user);     /* it will not be: remove what is there */

typedef struct dsv41_writer {
  uint32_t struct_size;
  uint32_t reserved0;
  dsv41_write_fn write_fn;   /* required */
  dsv41_sync_fn sync_fn;     /* NULL: nothing to do */
  dsv41_commit_fn commit_fn; /* NULL: nothing to do */
  dsv41_abort_fn abort_fn;   /* NULL: nothing to do */
  void* user;
} dsv41_writer;

/* Where the bytes of a snapshot come from: any place, on the thread of the call that reads. Values other than 0 as in
 * dsv41_write_fn. Size and bytes must not change while the snapshot is open. */
typedef int32_t (*dsv41_read_at_fn)(void* user, uint64_t offset, void* buffer, size_t size); /* all of `size` bytes */
typedef int32_t (*dsv41_size_fn)(void* user, uint64_t* size); /* *size: bytes in all. Asked once, at opening */
typedef void (*dsv41_close_fn)(void* user);                   /* once, when the opened snapshot goes */

typedef struct dsv41_reader {
  uint32_t struct_size;
  uint32_t reserved0;
  dsv41_read_at_fn read_at_fn; /* required; never asked for bytes beyond the size */
  dsv41_size_fn size_fn;       /* required */
  dsv41_close_fn close_fn;     /* NULL: nothing to do */
  void* user;
} dsv41_reader;

/* Objects of the host in place of a store's folder: an object store, a database, another process. Names are
 * NUL-terminated, of the letters a to z, digits and '/', at most 63; objects have a few bytes to 64 MiB. Called from
 * threads of the library, one call at a time. Several processes may share the objects: a name stands for a content,
 * whoever puts it. 0: done; DSV41_OBJECT_MISSING; any other value: a failure, which the call that meets it answers as
 * DSV41_HOST_CALLBACK with that value. */
#define DSV41_OBJECT_MISSING 1
/* Copies up to `capacity` bytes from `offset` on: *n_copied of them, and tells the whole size in *size. */
typedef int32_t (*dsv41_object_get_fn)(void* user, const char* name, uint64_t offset, void* buffer, size_t capacity,
                                       size_t* n_copied, uint64_t* size);
/* Makes or replaces the object: it is there as a whole, and durable as far as the host promises it, afterwards. */
typedef int32_t (*dsv41_object_put_fn)(void* user, const char* name, const void* bytes, size_t size);
typedef int32_t (*dsv41_object_delete_fn)(void* user, const char* name);
/* Calls visit(visit_state, name, size) for each object whose name begins with `prefix`. */
typedef void (*dsv41_object_visit_fn)(void* visit_state, const char* name, uint64_t size);
typedef int32_t (*dsv41_object_list_fn)(void* user, const char* prefix, dsv41_object_visit_fn visit, void* visit_state);

typedef struct dsv41_object_store {
  uint32_t struct_size;
  uint32_t reserved0;
  dsv41_object_get_fn get_fn;       /* required */
  dsv41_object_put_fn put_fn;       /* required unless the store is opened as DSV41_LOCK_READER */
  dsv41_object_delete_fn delete_fn; /* NULL: nothing can be removed */
  dsv41_object_list_fn list_fn;     /* NULL: records are found by asking for them, but not listed */
  void* user;
} dsv41_object_store;

enum { DSV41_LOG_DEBUG = 1, DSV41_LOG_INFO = 2, DSV41_LOG_WARN = 3, DSV41_LOG_ERROR = 4 };
enum {
  DSV41_PHASE_OPEN = 1,   /* dsv41_model_open; units: thousandths of the weights */
  DSV41_PHASE_PREFILL = 2 /* a call that runs the model; units: tokens its encoder runs on, replayed ones included */
};

/* ------------------------------------------------------------------------------------------- options and results */

/* Instructions of the CPU backend. Each gives the same bits for a token whatever its company; between them results are
 * exact and not bit-identical, and the numeric class tells them apart. */
enum {
  /* NEON on aarch64, else the last of the three that follow which the machine has; the others by name only */
  DSV41_CPU_TARGET_AUTO = 0,
  DSV41_CPU_TARGET_SCALAR = 1,
  DSV41_CPU_TARGET_AVX2 = 2,
  DSV41_CPU_TARGET_AVX512 = 3,
  DSV41_CPU_TARGET_AVX512_BF16 = 4, /* AVX512 with FP8 and BF16 weights through BF16 dot products */
  /* AVX512 with FP8 and BF16 weights through BF16 tiles. No machine that has them has run the tests yet.
   * The process asks the system for their state, once, when this target is chosen or the targets are listed: on Linux
   * signal frames of threads that use tiles grow by 8 KiB, and sigaltstack refuses stacks too small for that. */
  DSV41_CPU_TARGET_AMX = 5,
  DSV41_CPU_TARGET_NEON = 16 /* any aarch64 */
};
/* Where the workers of the CPU backend run. Threads of the host's, which take part in the work of their calls, are never
 * moved. */
enum {
  DSV41_AFFINITY_AUTO = 0, /* on a machine of several NUMA nodes each worker stays on one; else as NONE */
  DSV41_AFFINITY_NONE = 1, /* wherever the process may run */
  /* thread i of n_threads on processor i of worker_cpus, which begins anew at its end; thread 0 is the caller's */
  DSV41_AFFINITY_LIST = 2
};
/* Where KV pages and the weights that the library itself copies lie. Pages of mapped weights follow as far as workers are
 * the first to read them. The memory of alloc_fn is the host's matter. */
enum {
  DSV41_NUMA_AUTO = 0,       /* INTERLEAVE where the threads run on several nodes, else NONE */
  DSV41_NUMA_NONE = 1,       /* on the node of the thread that writes a page first */
  DSV41_NUMA_INTERLEAVE = 2, /* page by page on all nodes on which the threads run */
  DSV41_NUMA_BIND = 3        /* on no other nodes than those; when they are full, memory has ended */
};
/* How a backend on host memory holds the weights. Results are the same, bit for bit. */
enum {
  DSV41_WEIGHTS_AUTO = 0,   /* PACKED where that takes at most half of the memory of the machine, else MAPPED */
  DSV41_WEIGHTS_MAPPED = 1, /* as they lie in the files, read when they are used: opens in seconds at any size */
  DSV41_WEIGHTS_PACKED = 2  /* copied in the order of use, on large pages: opening reads all, use is faster */
};
/* Where the routed experts, or the tables of Engram rows, lie while a model is open: the larger part of its weights. Results
 * are the same, bit for bit. The backend "ref" has MMAP only. */
enum {
  DSV41_PLACE_AUTO = 0, /* experts as weight_layout says, packed or mapped; Engram tables mapped */
  /* Pages of the files, that the system reads when they are touched and drops when it likes: opens at once; where memory
   * is short, each use may wait for single pages. */
  DSV41_PLACE_MMAP = 1,
  /* All in memory of ours, on large pages, read when the model opens (experts packed where the other weights are): never
   * waits; DSV41_NO_MEMORY where it does not fit. */
  DSV41_PLACE_RAM = 2,
  /* In the files, past the system's cache: what a step needs is read while the step computes, many pieces at a time, and
   * a cache of bounded size keeps what was used last. Memory is bounded, and a step takes as long as the disk needs for
   * what the cache lacks. */
  DSV41_PLACE_DISK = 3
};
enum {
  DSV41_DECODER_BOUNDED = 0, /* prefill runs the decoder half on the last 128 tokens of the call: the model's way */
  DSV41_DECODER_FULL = 1     /* prefill runs both halves on all tokens: needed for log-probabilities of a prompt */
};
/* What to do when window rows of the encoder half are missing. */
enum {
  DSV41_ENCODER_BOUNDED = 0, /* run the last 128 tokens again: the approximation that the model is meant for */
  DSV41_ENCODER_REFUSE = 1,  /* replay nothing: start at token 0 or answer DSV41_REPLAY_REQUIRED */
  DSV41_ENCODER_EXACT = 2    /* run as many tokens again as an exact result takes; use nothing approximate */
};
enum { DSV41_RESULT_BIT_IDENTICAL = 0, DSV41_RESULT_EXACT = 1, DSV41_RESULT_APPROXIMATE = 2 }; /* convention 9 */
/* Where the tokens came from that a call did not compute. */
enum {
  DSV41_HIT_NONE = 0,   /* all computed */
  DSV41_HIT_LIVE = 1,   /* the session's own */
  DSV41_HIT_WINDOW = 2, /* a window entry, and cached or own pages below it */
  DSV41_HIT_PREFIX = 3, /* cached pages alone */
  DSV41_HIT_STORE = 4   /* pages or windows that were read from a store */
};
/* The run whose bytes a result equals: convention 9. */
enum { DSV41_REFERENCE_LIVE = 0, DSV41_REFERENCE_COLD = 1, DSV41_REFERENCE_REPLAY = 2 };
enum {
  DSV41_STOP_TOKEN = 1,       /* a stop token was sampled; it is reported, not appended */
  DSV41_STOP_MAX_TOKENS = 2,  /* max_new_tokens were appended */
  DSV41_STOP_CALLBACK = 3,    /* the token callback returned a value other than 0 */
  DSV41_STOP_CONTEXT_FULL = 4 /* the session's limit is reached */
};

/* What was built, and the numeric class of this machine. Texts are NUL-terminated. */
typedef struct dsv41_build_info {
  uint32_t struct_size;
  uint32_t abi_version;
  char version[32];  /* "0.1.0" */
  char backends[64]; /* names for dsv41_model_options.backends, comma-separated */
  /* what this machine offers of "scalar", "avx2", "avx512", "avx512_bf16", "amx", "neon", comma-separated */
  char cpu_targets[64];
  char compiler[64];
  char codecs[32];                /* of snapshots: "none,zstd" */
  uint32_t snapshot_major;        /* version of the snapshot format that is written */
  uint32_t snapshot_minor;        /* any minor version of a known major version can be read */
  uint32_t snapshot_oldest_major; /* the oldest major version that can be read */
  uint32_t store_major;           /* version of the format of stores */
} dsv41_build_info;

typedef struct dsv41_runtime_options {
  uint32_t struct_size;
  /* Worker threads, the caller's included; at most 1,024. 0: one per processor of worker_cpus, or of the affinity mask of
   * the thread that opens the first model, as far as the quota of its control group goes */
  uint32_t n_threads;
  uint32_t cpu_target;     /* DSV41_CPU_TARGET_*; for tests. UNSUPPORTED if the machine lacks it */
  uint32_t log_min_level;  /* DSV41_LOG_*; 0: INFO */
  dsv41_alloc_fn alloc_fn; /* for every buffer whose size depends on model or token count; NULL: malloc. Weights and
                            KV pages are not among them: those are mapped */
  dsv41_free_fn free_fn;   /* goes with alloc_fn: both or none */
  void* alloc_user;
  dsv41_log_fn log_fn; /* NULL: silent */
  void* log_user;
  dsv41_clock_fn clock_fn; /* times of results: monotonic; NULL: the system's monotonic clock */
  void* clock_user;
  dsv41_clock_fn wall_clock_fn; /* dates in files: since 1970-01-01 UTC; NULL: the system's */
  void* wall_clock_user;
  uint32_t affinity; /* DSV41_AFFINITY_* */
  uint32_t numa;     /* DSV41_NUMA_*. Both: what the system refuses is logged once, as a warning, and done without */
  const char* worker_cpus; /* with DSV41_AFFINITY_LIST: "0-7,16-23", numbered as the system does; else NULL. Copied */
  size_t worker_cpus_size;
  uint64_t reserved[3];
} dsv41_runtime_options;

typedef struct dsv41_model_options {
  uint32_t struct_size;
  uint32_t weight_layout; /* DSV41_WEIGHTS_*; a backend with one layout takes that */
  const char* folder;     /* checkpoint folder, UTF-8; required */
  size_t folder_size;
  const char* backends; /* comma-separated names, the first that is there is taken; NULL: "cpu". "ref" is slow */
  size_t backends_size;
  dsv41_progress_fn progress_fn; /* NULL: none */
  void* progress_user;
  dsv41_cancel* cancel;      /* NULL: none. Must live during the call */
  uint32_t expert_placement; /* DSV41_PLACE_*: the routed experts */
  uint32_t engram_placement; /* DSV41_PLACE_*: the tables of Engram rows */
  /* With DISK: for experts that were used; 0: a quarter of the memory of the machine. Less than the experts of one token
   * take: DSV41_INVALID_ARG. */
  uint64_t expert_cache_bytes;
  uint64_t engram_cache_bytes; /* with DISK: for rows that were used; 0: a 64th of the memory of the machine */
  uint64_t reserved[5];
} dsv41_model_options;

typedef struct dsv41_model_info {
  uint32_t struct_size;
  uint32_t n_layers;
  uint64_t vocab_size; /* logits have this many values */
  uint64_t hidden_size;
  uint64_t max_tokens; /* longest session that the model knows */
  uint64_t n_experts;  /* routed experts of a layer */
  uint64_t n_experts_per_token;
  uint64_t window_tokens;    /* sliding window */
  uint32_t n_encoder_layers; /* layers that run on every prompt token */
  uint32_t n_draft_layers;
  uint32_t n_engram_layers;
  int32_t bos_token;            /* -1 where the vocabulary has none */
  int32_t eos_token;            /* default stop token */
  uint32_t has_vision;          /* the checkpoint has a vision tower (this library does not run it) */
  char backend[32];             /* NUL-terminated */
  char numeric_class[32];       /* NUL-terminated: backend, target and order of sums ("cpu/avx512/1"): results of equal
                             classes are bit-identical */
  uint64_t packed_weight_bytes; /* memory of the packed weights; 0: they are mapped */
  uint64_t copied_weight_bytes; /* memory of weights that lie in it as in the files (DSV41_PLACE_RAM) */
  uint64_t expert_cache_bytes;  /* memory for experts from disk (DSV41_PLACE_DISK); 0: none come from there */
  uint64_t engram_cache_bytes;  /* likewise, Engram rows */
} dsv41_model_info;

/* Which model a checkpoint is: SHA-256 digests. Equal `model` and numeric_class: the same results, bit for bit. */
typedef struct dsv41_fingerprint {
  uint32_t struct_size;
  uint32_t reserved0;
  uint8_t model[32];     /* over the four below: the identity */
  uint8_t config[32];    /* config.json */
  uint8_t tensors[32];   /* names, types, shapes; contents of tensors up to 1 MiB, 64 samples of 4 KiB of larger ones */
  uint8_t tokenizer[32]; /* tokenizer.json; zeros when there is none */
  uint8_t engram[32];    /* map from token ids to Engram ids; zeros without Engram layers */
  char numeric_class[32]; /* NUL-terminated, as in dsv41_model_info; not part of the digests */
} dsv41_fingerprint;

/* How KV memory is kept. V4.1 has its native format only: FP4 records and index keys. */
enum {
  DSV41_KV_NATIVE = 0,    /* V4: FP8 records, FP4 index keys */
  DSV41_KV_FP8_INDEX = 1, /* V4 only: FP8 records and index keys */
  DSV41_KV_BF16 = 2       /* V4 only: records, index keys and window rows in BF16 */
};

typedef struct dsv41_plan_options {
  uint32_t struct_size;
  uint32_t kv_format; /* DSV41_KV_* */
  const char* preset; /* "V4.1-Flash", "V4-Flash" or "V4-Pro"; NULL, with path NULL too: "V4.1-Flash" */
  size_t preset_size;
  const char* path; /* config.json of a V4.1 checkpoint, or a folder that holds one; NULL: preset. Set one at most */
  size_t path_size;
  uint64_t n_sessions;  /* 0: 1 */
  uint64_t n_tokens;    /* of each session; 0: the longest session that the model knows */
  uint32_t with_drafts; /* 1: window rows of the draft layers too; pools keep none so far */
  uint32_t reserved0;
  uint64_t reserved[8];
} dsv41_plan_options;

/* KV memory of n_sessions sessions of n_tokens tokens, and the model's weights. Global records lie in pages that hold
 * page_tokens tokens of every layer that has them; window and compressor rows are the same for a session of any length.
 * Not counted: scratch memory of a running call, page tables, token lists. */
typedef struct dsv41_plan {
  uint32_t struct_size;
  uint32_t kv_format;      /* DSV41_KV_* */
  uint64_t n_layers;       /* without draft layers */
  uint64_t n_draft_layers; /* counted in; 0 unless options.with_drafts */
  uint64_t max_tokens;     /* longest session that the model knows */
  uint64_t n_sessions;
  uint64_t n_tokens; /* of each session */
  uint64_t page_tokens;
  uint64_t page_bytes;
  uint64_t page_payload_bytes;       /* page_bytes without padding */
  double bytes_per_token;            /* page_payload_bytes / page_tokens, exact */
  double padding_share;              /* of a page, [0, 1) */
  uint64_t pages_per_session;        /* token pages */
  uint64_t window_page_bytes;        /* V4.1: page_bytes, windows and tokens share the pool's pages */
  uint64_t window_pages_per_session; /* drafts included */
  uint64_t session_bytes;            /* what one session takes whatever its length: windows and state */
  /* Of all sessions together: */
  uint64_t token_payload_bytes; /* the records themselves */
  uint64_t token_page_bytes;    /* the pages that hold them: V4.1: dsv41_pool_options.bytes */
  uint64_t window_bytes;        /* in whole pages */
  uint64_t draft_window_bytes;  /* what drafts add to it */
  uint64_t state_bytes;         /* rows of the compressors until their record is complete */
  uint64_t total_bytes;         /* token_page_bytes, window_bytes, draft_window_bytes, state_bytes */
  /* Weights as the checkpoint stores them, codes and scales; 0 for the V4 models, whose tensors are not known here.
   * Packed weights take as much, but for rows that fill up bands of 16. */
  uint64_t weight_bytes;        /* all: the four below and the rest: attention, shared experts, embedding, head */
  uint64_t expert_bytes;        /* routed experts of the main layers */
  uint64_t engram_table_bytes;  /* of which a token reads a few rows */
  uint64_t draft_weight_bytes;  /* draft layers; this library does not read them so far */
  uint64_t vision_weight_bytes; /* this library does not read them */
  uint64_t token_weight_bytes;  /* read to decode one token: divided by the memory's rate, the least time of a token */
} dsv41_plan;

/* Kinds of a dsv41_plan_field. MAIN and INDEX lie in pages, the others belong to a session. */
enum {
  DSV41_KV_FIELD_MAIN = 1,  /* records of the global attention */
  DSV41_KV_FIELD_INDEX = 2, /* keys of the indexer */
  DSV41_KV_FIELD_WINDOW = 3,
  DSV41_KV_FIELD_DRAFT_WINDOW = 4,
  DSV41_KV_FIELD_STATE = 5,      /* compressor rows, f32 */
  DSV41_KV_FIELD_INDEX_STATE = 6 /* rows of the indexer's own compressor, f32 (V4) */
};

/* Frozen layout: never grows. Equal records of n_layers layers, in one page or in one session. */
typedef struct dsv41_plan_field {
  uint32_t kind;  /* DSV41_KV_FIELD_* */
  uint32_t ratio; /* tokens of one record; windows: 1; states: of the record that the rows become */
  uint64_t n_layers;
  uint64_t entries;       /* of one layer */
  uint64_t entry_bytes;   /* of one record or row */
  uint64_t payload_bytes; /* n_layers * entries * entry_bytes */
  uint64_t stored_bytes;  /* the same with alignment and spare rows of pages */
} dsv41_plan_field;

typedef struct dsv41_pool_options {
  uint32_t struct_size;
  uint32_t max_sessions;    /* sessions that hold window rows at once: that have run the model since their creation or
                            reset. Creating and forking take none; 0: 16 */
  uint64_t bytes;           /* KV memory for tokens; 0: derived from tokens */
  uint64_t tokens;          /* tokens of all sessions together; with bytes 0: 0 means 65,536. Set one at most */
  uint32_t no_prefix_cache; /* 1: prefill and sync take no cached pages */
  uint32_t no_window_cache; /* 1: no windows are kept in host memory */
  uint32_t no_decoder_windows;  /* 1: the window cache keeps the encoder's half alone, in half the memory */
  uint32_t poison_pages;        /* 1, for tests: pages are filled with NaN when they are taken and when given back */
  uint64_t window_cache_bytes;  /* host memory for windows; 0: a tenth of the machine's (or the control group's) */
  uint64_t window_cache_ttl_ns; /* windows that nobody used for so long go; 0: five minutes */
  uint64_t least_hit_tokens;    /* for tests: hits without windows on at most so many tokens start at token 0, as they
                                    cost that much again; 0: the model's window; 1: every hit counts */
  uint64_t reserved[8];
} dsv41_pool_options;

/* Pages for the KV of tokens are in one state each: n_token_pages is the sum of the seven counts from n_token_pages_free
 * to n_token_pages_retired. */
typedef struct dsv41_pool_stats {
  uint32_t struct_size;
  uint32_t page_tokens; /* tokens of a page */
  uint64_t page_bytes;
  uint64_t bookkeeping_bytes_per_page; /* host memory beside it */
  uint64_t arena_bytes;                /* address space of the pool; memory is used as pages are touched */
  uint64_t n_sessions;                 /* open sessions */
  uint64_t n_token_pages;
  uint64_t n_token_pages_free;
  uint64_t n_token_pages_reserved;  /* for running calls */
  uint64_t n_token_pages_private;   /* being filled by one session */
  uint64_t n_token_pages_sealed;    /* complete, held by sessions */
  uint64_t n_token_pages_cached;    /* complete, held by nobody: go when their place is needed */
  uint64_t n_token_pages_pinned;    /* complete, held by pins alone */
  uint64_t n_token_pages_retired;   /* given back, and free when the running calls have ended */
  uint64_t n_token_pages_unindexed; /* of the sealed and pinned: no lookup finds them */
  uint64_t n_window_slots;          /* sliding-window slots: dsv41_pool_options.max_sessions */
  uint64_t n_window_slots_free;
  /* Window cache: n_windows_put is the sum of n_windows, n_windows_evicted and n_windows_expired. */
  uint64_t window_cache_budget_bytes; /* 0: no window cache */
  uint64_t window_cache_bytes;
  uint64_t n_windows; /* entries that are there */
  uint64_t n_windows_put;
  uint64_t n_windows_renewed; /* wanted, and there already */
  uint64_t n_windows_found;   /* calls that started from one */
  uint64_t n_windows_evicted; /* for the budget, or by dsv41_pool_trim */
  uint64_t n_windows_expired;
  /* Since the pool was made: */
  uint64_t n_pages_sealed;
  uint64_t n_pages_adopted;  /* of these: gave way to a shared page with the same bytes */
  uint64_t n_pages_replaced; /* approximate pages whose place in the index an exact one took */
  uint64_t n_pages_evicted;
  uint64_t n_pages_copied;   /* copies on write */
  uint64_t n_key_collisions; /* pages that stay unindexed because too many share their key */
} dsv41_pool_stats;

typedef struct dsv41_session_options {
  uint32_t struct_size;
  uint32_t encoder;              /* DSV41_ENCODER_*: replay policy of every call; dsv41_session_set_replay changes it */
  uint32_t decoder;              /* DSV41_DECODER_*: the same */
  uint32_t strict_numeric_class; /* 1: nothing that another numeric class has computed is used; the same */
  uint64_t max_tokens;           /* limit of this session; 0: the model's */
  uint64_t chunk_tokens;         /* tokens of a prefill step, at most 8,192; 0: 512 */
  const void* salt; /* [salt_size] bytes, at most 4,096, copied: sessions share pages with those of equal salt only;
                            NULL: none */
  size_t salt_size;
  uint64_t reserved[8];
} dsv41_session_options;

typedef struct dsv41_session_info {
  uint32_t struct_size;
  uint32_t encoder;                /* DSV41_ENCODER_*: policies of the next call */
  uint32_t decoder;                /* DSV41_DECODER_* */
  uint32_t has_logits;             /* 1: dsv41_sample and dsv41_logits_copy work */
  uint32_t is_exact;               /* 1: nothing in it descends from an encoder bounded replay */
  uint32_t encoder_windows_intact; /* 1: the window rows that the next token reads are there; an empty session's: 0 */
  uint32_t decoder_windows_intact; /* 1: the same */
  uint32_t strict_numeric_class;   /* policy of the next call */
  uint64_t position;               /* tokens in the session */
  uint64_t max_tokens;
  uint64_t n_pages;        /* token pages in use */
  uint64_t n_pages_shared; /* of these: held by other sessions too, so that releasing this one does not free them */
} dsv41_session_info;

/* A token page of a session. Frozen layout: never grows. */
typedef struct dsv41_page_desc {
  uint64_t first_token; /* position */
  uint32_t n_tokens;    /* of this session: at most dsv41_pool_stats.page_tokens */
  uint32_t sealed;      /* 1: complete and immutable */
  uint32_t indexed;     /* 1: other sessions find it by its tokens */
  uint32_t shared;      /* 1: other sessions hold it too */
  uint32_t n_hits;      /* length of the provenance of its last token; 0: exact */
  uint32_t reserved0;
} dsv41_page_desc;

/* Global KV of tokens [first_token, end_token) descends from encoder bounded replays with hits at the positions
 * hits[first_hit] to hits[first_hit + n_hits - 1] of dsv41_session_provenance, oldest first; n_hits 0: it is exact.
 * Frozen layout: never grows. */
typedef struct dsv41_range {
  uint64_t first_token;
  uint64_t end_token;
  uint64_t first_hit;
  uint64_t n_hits;
} dsv41_range;

/* Tokens to append, to hold or to compare. */
typedef struct dsv41_input {
  uint32_t struct_size;
  uint32_t reserved0;
  const int32_t* tokens; /* [n_tokens] ids in [0, vocab_size) */
  size_t n_tokens;
  uint64_t reserved[4];
} dsv41_input;

typedef struct dsv41_run_options {
  uint32_t struct_size;
  uint32_t want_logprobs;        /* 1: keep log-probabilities of the session's tokens that this call can compute */
  uint64_t chunk_tokens;         /* 0: the session's */
  dsv41_cancel* cancel;          /* looked at in every layer of every chunk; NULL: none */
  dsv41_progress_fn progress_fn; /* after each chunk; NULL: none */
  void* progress_user;
  uint64_t reserved[8];
} dsv41_run_options;

/* What a call did. Encoder and decoder are the two halves of the model's layers. Tokens that the call was asked for,
 * that is the session's position after it: tokens_reused + encoder_tokens_computed. */
typedef struct dsv41_run_result {
  uint32_t struct_size;
  uint32_t result_class; /* DSV41_RESULT_* */
  uint32_t reference;    /* DSV41_REFERENCE_* */
  uint32_t hit_source;   /* DSV41_HIT_* */
  uint64_t position;     /* tokens in the session after the call, failed or not; all else is 0 after a failure */
  uint64_t hit_position; /* the global KV of the tokens before it was there */
  uint64_t encoder_tokens_computed;
  uint64_t decoder_tokens_computed;
  uint64_t tokens_reused;           /* equals hit_position */
  uint64_t encoder_tokens_replayed; /* tokens before hit_position that ran again, for their window rows */
  uint64_t decoder_tokens_replayed;
  uint64_t layer_tokens; /* work: sum over layers of the tokens they ran on */
  uint64_t time_ns;
  uint64_t hit_store_tokens; /* of the reused ones: read from the store in this call */
  uint64_t store_bytes_read; /* for these */
} dsv41_run_result;

/* Replay policies: of a session (dsv41_session_set_replay), or of a single question, where NULL means the session's. */
typedef struct dsv41_replay_options {
  uint32_t struct_size;
  uint32_t encoder;              /* DSV41_ENCODER_* */
  uint32_t decoder;              /* DSV41_DECODER_* */
  uint32_t strict_numeric_class; /* 0 or 1 */
  uint64_t reserved[4];
} dsv41_replay_options;

/* What a call would do; fields as in dsv41_run_result. */
typedef struct dsv41_replay_plan {
  uint32_t struct_size;
  uint32_t result_class; /* DSV41_RESULT_* */
  uint32_t reference;    /* DSV41_REFERENCE_* */
  uint32_t hit_source;   /* DSV41_HIT_* */
  uint64_t position;
  uint64_t hit_position;
  uint64_t encoder_tokens_computed;
  uint64_t decoder_tokens_computed;
  uint64_t tokens_reused;
  uint64_t encoder_tokens_replayed;
  uint64_t decoder_tokens_replayed;
  uint64_t layer_tokens;
} dsv41_replay_plan;

/* What a cut leaves to do. From result_class on: what the next call would do if it brings one more token; fields as in
 * dsv41_run_result, and 0 where refused is 1. */
typedef struct dsv41_replay_info {
  uint32_t struct_size;
  uint32_t refused;                /* 1: that call would answer DSV41_REPLAY_REQUIRED; the cut is made all the same */
  uint32_t encoder_windows_intact; /* 1: the window rows that the next token reads are there; at position 0: 0 */
  uint32_t decoder_windows_intact; /* 1: the same */
  uint64_t position;               /* tokens in the session now */
  uint32_t result_class;           /* DSV41_RESULT_* */
  uint32_t reference;              /* DSV41_REFERENCE_* */
  uint32_t hit_source;             /* DSV41_HIT_* */
  uint32_t reserved0;
  uint64_t hit_position;
  uint64_t encoder_tokens_computed;
  uint64_t decoder_tokens_computed;
  uint64_t tokens_reused;
  uint64_t encoder_tokens_replayed;
  uint64_t decoder_tokens_replayed;
  uint64_t layer_tokens;
} dsv41_replay_info;

/* Parts of a session's state, for dsv41_session_digest. */
#define DSV41_DIGEST_TOKENS 1u
#define DSV41_DIGEST_GLOBAL_KV 2u
#define DSV41_DIGEST_ENCODER_WINDOWS 4u /* rows that the next token reads; whether they are there counts */
#define DSV41_DIGEST_DECODER_WINDOWS 8u
#define DSV41_DIGEST_OPEN_ROWS 16u /* compressor rows of a record that is not complete */
#define DSV41_DIGEST_LOGITS 32u
#define DSV41_DIGEST_ALL 63u

/* What dsv41_session_replay rebuilds. */
#define DSV41_REPLAY_ENCODER 1u
#define DSV41_REPLAY_DECODER 2u /* the encoder's rows too: the decoder's are computed from its outputs */

typedef struct dsv41_logit_bias {
  int32_t token;
  float bias; /* added to the logit; -INFINITY bans the token */
} dsv41_logit_bias;

/* Applied in this order: logit bias, penalties, temperature, top_k, top_p, min_p, draw. All zeros: greedy. */
typedef struct dsv41_sampler_options {
  uint32_t struct_size;
  uint32_t top_k;                 /* 0: off */
  double temperature;             /* 0: greedy (highest logit, lowest id on a tie) */
  double top_p;                   /* (0, 1]; 0: off */
  double min_p;                   /* [0, 1]; 0: off */
  double repetition_penalty;      /* > 0: divides positive and multiplies negative logits of seen tokens; 0 or 1: off */
  double presence_penalty;        /* subtracted once from the logit of a seen token */
  double frequency_penalty;       /* subtracted once per occurrence */
  uint64_t penalty_window_tokens; /* how many of the last accepted tokens count as seen; 0: all */
  uint64_t seed;                  /* same seed, same options, same positions: same tokens */
  const dsv41_logit_bias* logit_bias; /* [n_logit_bias], copied; a token may stand once */
  size_t n_logit_bias;
  uint64_t reserved[8];
} dsv41_sampler_options;

typedef struct dsv41_sample_result {
  uint32_t struct_size;
  int32_t token;
  uint64_t n_candidates; /* tokens that could have been drawn */
  double logprob;        /* natural logarithm, under the distribution that was drawn from */
  double raw_logprob;    /* under the untouched logits */
} dsv41_sample_result;

typedef struct dsv41_generate_options {
  uint32_t struct_size;
  uint32_t reserved0;
  uint64_t max_new_tokens;    /* 0: up to the session's limit */
  const int32_t* stop_tokens; /* [n_stop_tokens]; NULL: the model's eos_token */
  size_t n_stop_tokens;
  dsv41_token_fn token_fn; /* NULL: none */
  void* token_user;
  dsv41_cancel* cancel; /* NULL: none */
  uint64_t reserved[8];
} dsv41_generate_options;

typedef struct dsv41_generate_result {
  uint32_t struct_size;
  uint32_t stop_reason;  /* DSV41_STOP_*; 0 when the call failed */
  int32_t stop_token;    /* the stop token that was sampled, -1 if none */
  uint32_t result_class; /* DSV41_RESULT_*: of the worst token */
  uint32_t reference;    /* DSV41_REFERENCE_*: of the last token */
  uint32_t reserved0;
  uint64_t n_tokens; /* appended by this call */
  uint64_t position; /* tokens in the session after the call */
  uint64_t encoder_tokens_computed;
  uint64_t decoder_tokens_computed;
  uint64_t encoder_tokens_replayed;
  uint64_t decoder_tokens_replayed;
  uint64_t layer_tokens;
  uint64_t time_ns;
} dsv41_generate_result;

/* What a snapshot holds. */
enum {
  DSV41_SNAPSHOT_DEFAULT = 0, /* what suits backend and session */
  DSV41_SNAPSHOT_PREFIX = 1,  /* tokens and global KV: the next call replays */
  DSV41_SNAPSHOT_FULL = 2     /* window and open rows too: goes on bit for bit */
};
enum {
  DSV41_DURABLE_FULL = 0, /* file and folder are synced: survives a power cut */
  DSV41_DURABLE_NONE = 1  /* whole or old for every process; a power cut may lose it */
};
/* Parts of a snapshot; the first six as in DSV41_DIGEST_*. */
#define DSV41_PART_TOKENS 1u
#define DSV41_PART_GLOBAL_KV 2u
#define DSV41_PART_ENCODER_WINDOWS 4u
#define DSV41_PART_DECODER_WINDOWS 8u
#define DSV41_PART_OPEN_ROWS 16u
#define DSV41_PART_LOGITS 32u
#define DSV41_PART_SAMPLER 64u
#define DSV41_PART_HOST_DATA 256u

/* Data of the host in a snapshot, under a number of its choice. Frozen layout: never grows. */
typedef struct dsv41_host_section {
  uint32_t id; /* each one once */
  uint32_t reserved0;
  const void* data; /* [size] bytes; a section of no bytes is not the same as none */
  size_t size;      /* at most 1 GiB */
} dsv41_host_section;

typedef struct dsv41_snapshot_options {
  uint32_t struct_size;
  uint32_t kind;               /* DSV41_SNAPSHOT_* */
  uint32_t no_decoder_windows; /* 1: of FULL: half the window bytes; the decoder's rows are rebuilt, by a replay */
  uint32_t no_logits;          /* 1: of FULL: the last token has to run again before the first sample */
  uint32_t no_compression;     /* 1: all bytes as they are */
  uint32_t zstd_level;         /* 1 to 19; 0: 1 */
  uint32_t durability;         /* DSV41_DURABLE_*: of a save to a path */
  uint32_t reserved0;
  dsv41_sampler* sampler;                  /* its options and history are saved; NULL: none */
  const dsv41_host_section* host_sections; /* [n_host_sections] */
  size_t n_host_sections;
  dsv41_cancel* cancel; /* looked at in every chunk; NULL: none */
  uint64_t reserved[8];
} dsv41_snapshot_options;

/* What a snapshot says of itself. Texts are NUL-terminated. */
typedef struct dsv41_snapshot_info {
  uint32_t struct_size;
  uint32_t kind;         /* DSV41_SNAPSHOT_* */
  uint32_t parts;        /* DSV41_PART_* */
  uint32_t is_exact;     /* 1: nothing in it descends from an encoder bounded replay */
  uint32_t format_major; /* version of the format that it is written in */
  uint32_t format_minor;
  uint32_t n_host_sections;
  uint32_t reserved0;
  uint64_t n_tokens;
  uint64_t total_bytes;         /* size of the file */
  uint64_t kv_raw_bytes;        /* global KV */
  uint64_t kv_stored_bytes;     /* the same in the file */
  uint64_t window_raw_bytes;    /* window and open rows */
  uint64_t window_stored_bytes; /* the same in the file */
  uint64_t saved_unix_ns;       /* time of saving, since 1970-01-01 UTC */
  uint8_t model[32];            /* as dsv41_fingerprint.model */
  uint8_t layout[32];           /* KV layout of the model */
  uint8_t salt_digest[32];      /* SHA-256 of the session's salt */
  uint8_t chain[32];            /* SHA-256 chain over layout, model, salt and all tokens */
  char numeric_class[32];
  char writer_version[32]; /* of the library that wrote it */
} dsv41_snapshot_info;

/* How much of a snapshot to check. */
enum {
  DSV41_VERIFY_TABLE = 0,  /* what opening checks: head, tail, table of sections */
  DSV41_VERIFY_CHUNKS = 1, /* every byte against its checksum, what lies between, the hash of the file */
  DSV41_VERIFY_DECODE = 2  /* decompress all, and compare the sections with each other */
};

typedef struct dsv41_verify_report {
  uint32_t struct_size;
  uint32_t is_intact; /* 1: nothing wrong at this level */
  uint64_t n_chunks;  /* looked at */
  uint64_t n_bad_chunks;
  uint64_t n_bad_gaps;         /* bytes between chunks that are not zero */
  uint64_t first_bad_offset;   /* place in the file; 0 where there is none */
  uint32_t file_hash_is_equal; /* 1 also where it was not computed */
  uint32_t reserved0;
} dsv41_verify_report;

/* Whether a snapshot can be restored with a model. */
typedef struct dsv41_compat_report {
  uint32_t struct_size;
  int32_t status;              /* what dsv41_snapshot_restore would answer on this account: OK, MODEL_MISMATCH,
                                  LAYOUT_MISMATCH */
  uint32_t same_model;         /* 1: equal fingerprints */
  uint32_t same_layout;        /* 1: KV records lie in memory in the same way */
  uint32_t same_numeric_class; /* 1: goes on bit for bit; 0: exact. With strict_numeric_class: NUMERIC_MISMATCH */
  uint32_t reserved0;
} dsv41_compat_report;

typedef struct dsv41_restore_options {
  uint32_t struct_size;
  uint32_t encoder; /* these and max_tokens to salt_size: of the session that comes out, as dsv41_session_options */
  uint32_t decoder;
  uint32_t strict_numeric_class; /* 1: the same, and NUMERIC_MISMATCH where that is not the model's class */
  uint32_t required_parts;       /* DSV41_PART_* bits: SECTION_MISSING where one is not there, or unwanted */
  uint32_t unwanted_parts;       /* DSV41_PART_* bits of windows, open rows, logits: left out; without the encoder's
                                    windows or open rows all of them are */
  uint64_t max_tokens;
  uint64_t chunk_tokens;
  const void* salt; /* what the saved session had: NAMESPACE_MISMATCH otherwise */
  size_t salt_size;
  const dsv41_input* expected_tokens; /* TOKENS_MISMATCH unless just these are restored; NULL: not compared */
  dsv41_cancel* cancel;               /* looked at in every page; NULL: none */
  uint64_t reserved[8];
} dsv41_restore_options;

/* What came back. Each part of a session, and its sampler, is in one of the three lists. */
typedef struct dsv41_restore_info {
  uint32_t struct_size;
  uint32_t parts_restored;     /* DSV41_PART_* bits */
  uint32_t parts_to_rebuild;   /* by the replay of the next call that runs the model */
  uint32_t parts_absent;       /* logits: until a token is computed; a sampler: none was saved */
  uint32_t same_numeric_class; /* 1: the session was computed in the numeric class of this model */
  uint32_t reserved0;
  uint64_t position;       /* tokens in the session */
  uint64_t n_pages_shared; /* that the pool had already */
  uint64_t bytes_read;
  uint64_t time_ns;
} dsv41_restore_info;

/* Who may write a store's folder. The host's objects know no lock: there WRITER writes, and READER does not. */
enum {
  DSV41_LOCK_WRITER = 0,           /* LOCKED when another process writes */
  DSV41_LOCK_WRITER_OR_READER = 1, /* then read only */
  DSV41_LOCK_READER = 2            /* read only; NOT_FOUND where there is no store */
};

typedef struct dsv41_store_options {
  uint32_t struct_size;
  uint32_t lock;                     /* DSV41_LOCK_* */
  const char* folder;                /* UTF-8; made where it is missing; NULL: objects */
  size_t folder_size;                /* bytes */
  const dsv41_object_store* objects; /* copied; NULL: folder. Set one */
  uint32_t exact_only;               /* 1: takes in and finds nothing that descends from an encoder bounded replay */
  uint32_t no_compression;           /* 1: all bytes as they are */
  uint32_t zstd_level;               /* 1 to 19; 0: 1 */
  uint32_t no_background;            /* 1: no thread: dsv41_store_put and write-back write before they return */
  uint64_t budget_bytes;             /* of pages and states on disk; 0: no limit */
  uint64_t ttl_ns;                   /* since the last use; 0: 72 hours; UINT64_MAX: for ever */
  uint64_t min_tokens;               /* sessions of fewer tokens are not taken in */
  uint64_t write_budget_bytes;       /* in each write_interval_ns; beyond it nothing is taken in; 0: no limit */
  uint64_t write_interval_ns;        /* 0: one hour */
  uint64_t queue_bytes;              /* memory for records that wait for the thread; 0: 64 MiB */
  uint64_t segment_bytes;            /* size of a file of pages; 0: 64 MiB */
  uint64_t read_deadline_ns;         /* a wait for disk or host that takes longer is a miss; 0: none */
  uint64_t reserved[8];
} dsv41_store_options;

/* When pages of a pool's sessions go to its store. */
enum {
  DSV41_WRITE_ON_DEMAND = 0, /* with dsv41_store_put */
  DSV41_WRITE_ON_SEAL = 1    /* when they are complete, too */
};

typedef struct dsv41_attach_options {
  uint32_t struct_size;
  uint32_t write_back; /* DSV41_WRITE_* */
  uint64_t reserved[8];
} dsv41_attach_options;

typedef struct dsv41_lookup_options {
  uint32_t struct_size;
  uint32_t exact_only;           /* 1: nothing that descends from an encoder bounded replay */
  uint32_t strict_numeric_class; /* 1: only what was computed in the model's numeric class */
  uint32_t reserved0;
  uint64_t max_tokens; /* of the match; 0: as many as there are */
  const void* salt;    /* of the sessions that put it there; NULL: none */
  size_t salt_size;
  uint64_t reserved[8];
} dsv41_lookup_options;

/* What a lookup found. */
typedef struct dsv41_match_info {
  uint32_t struct_size;
  uint32_t parts;    /* DSV41_PART_* of its state; 0: pages alone */
  uint32_t is_exact; /* 1: nothing in it descends from an encoder bounded replay */
  uint32_t reserved0;
  uint64_t n_tokens;
  uint64_t n_pages;
  uint64_t stored_bytes;  /* of its records */
  uint8_t key[16];        /* of the state, else of the last page */
  char numeric_class[32]; /* NUL-terminated: of that record */
} dsv41_match_info;

typedef struct dsv41_put_options {
  uint32_t struct_size;
  uint32_t pages_only;                 /* 1: no state: only full pages can be found again */
  uint32_t exact_only;                 /* 1: nothing that descends from an encoder bounded replay */
  uint32_t flush;                      /* 1: durable when the call returns */
  const dsv41_snapshot_options* state; /* kind, parts, sampler and host sections of the state; NULL: defaults */
  uint64_t reserved[8];
} dsv41_put_options;

/* What became of a put: of its state, or of the last page. */
enum {
  DSV41_PUT_QUEUED = 1,  /* will be written; with flush or without a thread: is */
  DSV41_PUT_PRESENT = 2, /* was there already */
  /* NOT_ADMITTED: */
  DSV41_PUT_TOO_SHORT = 3, /* min_tokens */
  DSV41_PUT_NOT_EXACT = 4, /* exact_only */
  DSV41_PUT_WRITE_BUDGET = 5,
  DSV41_PUT_NO_ROOM = 6,  /* larger than the budget, or all else is pinned or in use; or its key is taken */
  DSV41_PUT_NO_PARENT = 7 /* a page below it was not taken in, or an exact one stands in its place */
};

typedef struct dsv41_put_result {
  uint32_t struct_size;
  uint32_t outcome;         /* DSV41_PUT_* */
  uint8_t key[16];          /* of the state, or of the last page: for dsv41_store_pin, _unpin, _remove */
  uint64_t n_tokens;        /* that can be found again */
  uint64_t n_pages_new;     /* handed over in this call */
  uint64_t n_pages_present; /* there already */
  uint64_t raw_bytes_new;   /* handed over in this call, before compression */
} dsv41_put_result;

enum { DSV41_RECORD_PAGE = 1, DSV41_RECORD_STATE = 2 };

/* A record of a store. Texts are NUL-terminated. */
typedef struct dsv41_store_entry {
  uint32_t struct_size;
  uint32_t kind; /* DSV41_RECORD_* */
  uint8_t key[16];
  uint8_t parent[16];   /* of the page that it stands on; zeros: it begins at token 0 */
  uint64_t first_token; /* position */
  uint64_t end_token;
  uint64_t stored_bytes;
  uint64_t raw_bytes;       /* of its payload, without compression */
  uint64_t written_unix_ns; /* since 1970-01-01 UTC */
  uint64_t used_unix_ns;    /* last use */
  uint32_t n_pins;
  uint32_t is_exact; /* 1: descends from no encoder bounded replay */
  uint32_t parts;    /* DSV41_PART_* of a state */
  uint32_t reserved0;
  uint8_t model[32]; /* as dsv41_fingerprint.model */
  char numeric_class[32];
  char pin_reason[64]; /* of the last pin; cut if too long */
} dsv41_store_entry;

typedef struct dsv41_gc_report {
  uint32_t struct_size;
  uint32_t reserved0;
  uint64_t n_expired; /* records */
  uint64_t n_evicted; /* records */
  uint64_t segments_removed;
  uint64_t bytes_freed;    /* on disk */
  uint64_t physical_bytes; /* on disk now */
} dsv41_gc_report;

typedef struct dsv41_store_verify_report {
  uint32_t struct_size;
  uint32_t reserved0;
  uint64_t n_records;      /* looked at */
  uint64_t n_bad;          /* set aside, unless the store is read only */
  uint64_t bytes;          /* read */
  uint8_t first_bad[16];   /* key; zeros: none */
  char first_problem[128]; /* NUL-terminated */
} dsv41_store_verify_report;

typedef struct dsv41_store_stats {
  uint32_t struct_size;
  uint32_t read_only; /* 1: others may write, this store does not */
  uint64_t n_pages;   /* that can be found */
  uint64_t n_states;
  uint64_t record_bytes;   /* of these */
  uint64_t raw_bytes;      /* the same without compression */
  uint64_t physical_bytes; /* everything on disk */
  uint64_t budget_bytes;   /* 0: no limit */
  uint64_t n_pinned;
  uint64_t n_leased; /* held by matches and running calls */
  uint64_t queued_records;
  uint64_t queued_bytes;
  uint64_t n_segments;
  /* Since the store was opened: */
  uint64_t records_written;
  uint64_t bytes_written;
  uint64_t raw_bytes_written;
  uint64_t records_read; /* with success: their bytes were right */
  uint64_t bytes_read;
  uint64_t raw_bytes_read;
  uint64_t puts_present;
  uint64_t puts_declined;
  uint64_t puts_failed;
  uint64_t pages_asked; /* by lookups */
  uint64_t pages_found;
  /* The first page that a lookup missed, by reason: */
  uint64_t misses_absent;
  uint64_t misses_collision; /* the key of other tokens */
  uint64_t misses_parent;    /* computed on top of another page */
  uint64_t misses_class;     /* numeric class or exactness not wanted */
  /* Reads that gave nothing, by reason: */
  uint64_t reads_short;
  uint64_t reads_checksum;
  uint64_t reads_corrupt;
  uint64_t reads_mismatch; /* of other tokens or sizes */
  uint64_t reads_io;
  uint64_t reads_deadline;
  uint64_t reads_gone;       /* removed by another process, or by the host */
  uint64_t late_completions; /* reads that ended after their deadline or cancel */
  uint64_t n_quarantined;
  uint64_t n_evicted;
  uint64_t n_expired;
  uint64_t n_replaced;        /* approximate records whose place an exact one took */
  uint64_t n_damaged_at_open; /* records */
  uint64_t segments_compacted;
  uint64_t bytes_compacted;
  char last_problem[128]; /* NUL-terminated: what was wrong with the record that was set aside last; "": none was */
} dsv41_store_stats;

typedef struct dsv41_chatparse_options {
  uint32_t struct_size;
  uint32_t thinking; /* 1: the prompt ends in <think>, so the reply begins with reasoning; 0: not */
  uint32_t strict;   /* 1: after a tool block only the end may follow, and reasoning must be closed */
  uint32_t reserved0;
  uint64_t reserved[4];
} dsv41_chatparse_options;

enum {
  DSV41_CHAT_REASONING = 1,          /* text of the reasoning */
  DSV41_CHAT_CONTENT = 2,            /* text of the answer */
  DSV41_CHAT_TOOL_CALL_BEGIN = 3,    /* text: name of the tool */
  DSV41_CHAT_TOOL_CALL_ARGUMENT = 4, /* text: name of the argument; value: its JSON */
  DSV41_CHAT_TOOL_CALL_END = 5,      /* text: name of the tool; value: all arguments as a JSON object */
  DSV41_CHAT_END = 6,                /* the reply is over */
  DSV41_CHAT_MALFORMED = 7 /* a tool block breaks the grammar; text: what is wrong, "" when it was said before;
                              value: raw text */
};

/* Parts of a reply, for dsv41_chatparse_tokens. */
enum {
  DSV41_CHAT_PART_ALL = 0,
  DSV41_CHAT_PART_REASONING = 1,
  DSV41_CHAT_PART_CONTENT = 2,
  DSV41_CHAT_PART_TOOL_BLOCK = 3, /* also a malformed one and what follows it */
  DSV41_CHAT_PART_MARKUP = 4      /* the end of reasoning, the end of the reply */
};

/* One event of the parser. Pointers are valid until the next call on the parser. */
typedef struct dsv41_chat_event {
  uint32_t struct_size;
  uint32_t kind;     /* DSV41_CHAT_* */
  uint32_t call_idx; /* tool call events: 0 for the first call of the reply */
  uint32_t reserved0;
  const char* text;
  size_t text_size;
  const char* value;
  size_t value_size;
} dsv41_chat_event;

/* Counters of a runtime since its creation, over all its models, pools and sessions, closed ones included. Tokens that
 * calls were asked for: tokens_reused + encoder_tokens_computed. */
typedef struct dsv41_metrics {
  uint32_t struct_size;
  uint32_t reserved0;
  uint64_t encoder_tokens_computed;
  uint64_t decoder_tokens_computed;
  uint64_t tokens_reused;
  uint64_t layer_tokens;
  uint64_t tokens_sampled;
  uint64_t calls_cancelled;
  uint64_t cancel_latency_ns_max; /* longest time from a trigger to the end of the call that it stopped */
  uint64_t models_open;
  uint64_t pools_open;
  uint64_t sessions_created;
  uint64_t sessions_open;
  uint64_t token_pages;        /* pages of the open pools */
  uint64_t token_pages_in_use; /* not free; cached ones count */
  uint64_t window_slots;
  uint64_t window_slots_in_use;
  uint64_t arena_bytes;         /* address space of the open pools */
  uint64_t allocated_bytes;     /* held from alloc_fn (or malloc) now */
  uint64_t allocated_bytes_max; /* highest value so far */
  uint64_t encoder_tokens_replayed;
  uint64_t decoder_tokens_replayed;
  uint64_t tokens_hit_window;   /* of the reused ones: from a window entry (DSV41_HIT_WINDOW) */
  uint64_t tokens_hit_prefix;   /* of the reused ones: from cached pages alone (DSV41_HIT_PREFIX) */
  uint64_t sessions_forked;     /* of the created ones */
  uint64_t token_pages_private; /* of those in use: by state, as in dsv41_pool_stats */
  uint64_t token_pages_sealed;
  uint64_t token_pages_cached;
  uint64_t pages_sealed;
  uint64_t pages_adopted;
  uint64_t pages_copied;
  uint64_t pages_evicted;
  uint64_t windows; /* entries of the window caches */
  uint64_t window_bytes;
  uint64_t windows_put;
  uint64_t windows_found;
  uint64_t windows_dropped; /* evicted or expired */
  uint64_t snapshots_saved;
  uint64_t snapshot_bytes_saved; /* of these, as stored */
  uint64_t snapshots_restored;
  uint64_t snapshot_bytes_restored; /* read for these */
  uint64_t tokens_hit_store;        /* of the reused ones: from a store (DSV41_HIT_STORE) */
  uint64_t stores_open;
  uint64_t store_physical_bytes; /* of the open stores; from here on as in dsv41_store_stats */
  uint64_t store_pages_asked;
  uint64_t store_pages_found;
  uint64_t store_misses_absent;
  uint64_t store_misses_collision;
  uint64_t store_misses_parent;
  uint64_t store_misses_class;
  uint64_t store_records_written;
  uint64_t store_bytes_written;
  uint64_t store_raw_bytes_written;
  uint64_t store_records_read;
  uint64_t store_bytes_read;
  uint64_t store_raw_bytes_read;
  uint64_t store_puts_present;
  uint64_t store_puts_declined;
  uint64_t store_puts_failed;
  uint64_t store_reads_short;
  uint64_t store_reads_checksum;
  uint64_t store_reads_corrupt;
  uint64_t store_reads_mismatch;
  uint64_t store_reads_io;
  uint64_t store_reads_deadline;
  uint64_t store_reads_gone;
  uint64_t store_records_quarantined;
  uint64_t store_records_evicted;
  uint64_t store_records_expired;
  uint64_t experts_hit;       /* with DSV41_PLACE_DISK: experts that a layer of a step wanted and the cache had */
  uint64_t experts_missed;    /* that had to be read */
  uint64_t expert_waits;      /* times that computing waited for an expert's bytes */
  uint64_t expert_wait_ns;    /* as long as that took */
  uint64_t expert_reads;      /* reads of the disk for experts */
  uint64_t expert_bytes_read; /* by these */
  uint64_t engram_rows_asked; /* with DSV41_PLACE_DISK: rows that tokens of steps asked for */
  uint64_t engram_rows_deduplicated; /* of these: asked for before in the same step and layer */
  uint64_t engram_rows_hit;          /* of the others: the cache had them */
  uint64_t engram_rows_missed;       /* of the others: had to be read */
  uint64_t engram_reads;
  uint64_t engram_bytes_read;
} dsv41_metrics;

/* Frozen layout: never grows. Texts are NUL-terminated and static. */
typedef struct dsv41_metric_desc {
  uint32_t id;         /* for dsv41_metric_value */
  uint32_t is_counter; /* 1: only grows; 0: a level that goes up and down */
  const char* name;    /* as the field of dsv41_metrics */
  const char* unit;    /* "tokens", "bytes", "ns", ... */
} dsv41_metric_desc;

/* Frozen layout: never grows. One entry per struct (field "": the whole) and one per field. */
typedef struct dsv41_layout_entry {
  const char* struct_name;
  const char* field_name;
  uint32_t offset_bytes;
  uint32_t size_bytes;
} dsv41_layout_entry;

/* dsv41_X_init(x, sizeof *x): zeroes the struct, sets struct_size and the defaults. `size` is the caller's sizeof.
 * Never fails: NULL is ignored, and a size that cannot be right shows in the call that reads the struct. Any thread,
 * callback-safe. Since 0.1. */
DSV41_API void dsv41_error_init(dsv41_error* error, size_t size);
DSV41_API void dsv41_build_info_init(dsv41_build_info* info, size_t size);
DSV41_API void dsv41_runtime_options_init(dsv41_runtime_options* options, size_t size);
DSV41_API void dsv41_model_options_init(dsv41_model_options* options, size_t size);
DSV41_API void dsv41_model_info_init(dsv41_model_info* info, size_t size);
DSV41_API void dsv41_fingerprint_init(dsv41_fingerprint* fingerprint, size_t size);
DSV41_API void dsv41_plan_options_init(dsv41_plan_options* options, size_t size);
DSV41_API void dsv41_plan_init(dsv41_plan* plan, size_t size);
DSV41_API void dsv41_pool_options_init(dsv41_pool_options* options, size_t size);
DSV41_API void dsv41_pool_stats_init(dsv41_pool_stats* stats, size_t size);
DSV41_API void dsv41_session_options_init(dsv41_session_options* options, size_t size);
DSV41_API void dsv41_session_info_init(dsv41_session_info* info, size_t size);
DSV41_API void dsv41_input_init(dsv41_input* input, size_t size);
DSV41_API void dsv41_run_options_init(dsv41_run_options* options, size_t size);
DSV41_API void dsv41_run_result_init(dsv41_run_result* result, size_t size);
DSV41_API void dsv41_replay_options_init(dsv41_replay_options* options, size_t size);
DSV41_API void dsv41_replay_plan_init(dsv41_replay_plan* plan, size_t size);
DSV41_API void dsv41_replay_info_init(dsv41_replay_info* info, size_t size);
DSV41_API void dsv41_sampler_options_init(dsv41_sampler_options* options, size_t size);
DSV41_API void dsv41_sample_result_init(dsv41_sample_result* result, size_t size);
DSV41_API void dsv41_generate_options_init(dsv41_generate_options* options, size_t size);
DSV41_API void dsv41_generate_result_init(dsv41_generate_result* result, size_t size);
DSV41_API void dsv41_chatparse_options_init(dsv41_chatparse_options* options, size_t size);
DSV41_API void dsv41_chat_event_init(dsv41_chat_event* event, size_t size);
DSV41_API void dsv41_metrics_init(dsv41_metrics* metrics, size_t size);

/* --------------------------------------------------------------------- version, capabilities, layout (no handle) */

/* Version of the ABI: major << 16 | minor. Any thread, callback-safe. Since 0.1. */
DSV41_API uint32_t dsv41_abi_version(void);

/* "0.1.0", static. Any thread, callback-safe. Since 0.1. */
DSV41_API const char* dsv41_version_string(void);

/* Fills *out (not NULL). Any thread, callback-safe. Since 0.1. */
DSV41_API dsv41_status dsv41_build_info_get(dsv41_build_info* out, dsv41_error* error);

/* 1 if this build on this machine has the capability, 0 if not or if the id is unknown. Never fails. Any thread,
 * callback-safe. Since 0.1. */
DSV41_API int32_t dsv41_has_capability(uint32_t capability);
enum {
  DSV41_CAP_BACKEND_CPU = 1,
  DSV41_CAP_BACKEND_REF = 2,
  DSV41_CAP_CPU_AVX2 = 16,        /* DSV41_CPU_TARGET_AVX2 can be forced */
  DSV41_CAP_CPU_AVX512 = 17,      /* DSV41_CPU_TARGET_AVX512 can be forced */
  DSV41_CAP_CPU_AVX512_BF16 = 18, /* DSV41_CPU_TARGET_AVX512_BF16 can be forced */
  DSV41_CAP_CPU_AMX = 19,         /* DSV41_CPU_TARGET_AMX can be forced */
  DSV41_CAP_CPU_NEON = 24,        /* DSV41_CPU_TARGET_NEON can be forced */
  DSV41_CAP_DECODER_FULL = 32,
  DSV41_CAP_LOGPROBS = 33,
  DSV41_CAP_CHAT = 34, /* dsv41_chat_render, dsv41_chatparse_* */
  DSV41_CAP_FORK = 35,
  DSV41_CAP_SYNC = 36,         /* dsv41_sync and cached prefixes */
  DSV41_CAP_REPLAY = 37,       /* DSV41_ENCODER_*, dsv41_session_replay_plan, dsv41_session_replay */
  DSV41_CAP_WINDOW_CACHE = 38, /* windows in host memory */
  DSV41_CAP_SNAPSHOT = 39,     /* dsv41_snapshot_* */
  DSV41_CAP_STORE = 40,        /* dsv41_store_*, dsv41_match_*, dsv41_pool_attach_store */
  DSV41_CAP_ZSTD = 41          /* compressed snapshots can be written and read */
};

/* Name without prefix ("POOL_FULL") and one-line text of a status; "UNKNOWN" and "unknown status code" for a number
 * that is not in the list. Static, NUL-terminated. Any thread, callback-safe. Since 0.1. */
DSV41_API const char* dsv41_status_name(dsv41_status status);
DSV41_API const char* dsv41_status_text(dsv41_status status);

/* Names, offsets and sizes of every struct of this header, for bindings to compare with their own at start. *out:
 * static array of *n entries. Any thread, callback-safe. Since 0.1. */
DSV41_API dsv41_status dsv41_layout_table(const dsv41_layout_entry** out, size_t* n, dsv41_error* error);

/* ----------------------------------------------------------------------------------------------- runtime, cancel */

/* Makes a runtime. options: NULL for defaults; its callbacks must work until the last handle that descends from this
 * runtime is released. Codes: INVALID_ARG (worker_cpus also when it names a processor that the calling thread may not use),
 * UNSUPPORTED (cpu_target). Any thread. Since 0.1. */
DSV41_API dsv41_status dsv41_runtime_create(const dsv41_runtime_options* options, dsv41_runtime** out,
                                            dsv41_error* error);
DSV41_API void dsv41_runtime_release(dsv41_runtime* runtime);

/* Makes a cancel token. A token may serve several calls at once and stays triggered until reset. Any thread. Since
 * 0.1. */
DSV41_API dsv41_status dsv41_cancel_create(dsv41_runtime* runtime, dsv41_cancel** out, dsv41_error* error);

/* Stops the calls that were given this token: they answer DSV41_CANCELLED after at most one layer of one chunk. One
 * lock-free atomic store: any thread, signal handlers too, callback-safe. NULL is ignored. Since 0.1. */
DSV41_API void dsv41_cancel_trigger(dsv41_cancel* cancel);

/* Makes the token usable again. As trigger. Since 0.1. */
DSV41_API void dsv41_cancel_reset(dsv41_cancel* cancel);
DSV41_API void dsv41_cancel_release(dsv41_cancel* cancel);

/* --------------------------------------------------------------------------------------------------------- model */

/* Opens a checkpoint: config.json, model.safetensors.index.json with its shards (mapped, not read), tokenizer.json.
 * Every tensor's name, type and shape is checked; the message lists what is wrong. Packed weights are read and copied
 * before it returns, with all threads; NO_MEMORY says that they do not fit. A folder without tokenizer.json
 * opens too; the text functions of such a model answer UNSUPPORTED. Codes: NOT_FOUND, IO, PERMISSION, CHECKPOINT,
 * CHECKPOINT_UNSUPPORTED, TOKENIZER, BACKEND_UNAVAILABLE, NO_MEMORY, CANCELLED, HOST_CALLBACK. Any thread. Since
 * 0.1. */
DSV41_API dsv41_status dsv41_model_open(dsv41_runtime* runtime, const dsv41_model_options* options, dsv41_model** out,
                                        dsv41_error* error);

/* Fills *out (not NULL). Any thread, callback-safe. Since 0.1. */
DSV41_API dsv41_status dsv41_model_info_get(dsv41_model* model, dsv41_model_info* out, dsv41_error* error);

/* Computes the fingerprint into *out (not NULL). Folder, file names and sharding do not count. A change inside a tensor
 * of more than 1 MiB and outside its samples is not seen. Reads all small tensors: of nano 24 MB, of the released
 * checkpoint about 29 GB, so keep the result. Codes: NOT_FOUND, IO (a file has vanished), TOKENIZER. Any thread. Since
 * 0.1. */
DSV41_API dsv41_status dsv41_model_fingerprint(dsv41_model* model, dsv41_fingerprint* out, dsv41_error* error);
DSV41_API void dsv41_model_release(dsv41_model* model);

/* Computes the memory of sessions and weights from a model's name or its config.json, into *out (not NULL): arithmetic
 * alone, no checkpoint. The V4 models are there to size machines; this library does not run them. options: NULL for one
 * session of V4.1-Flash at its full length. Codes: UNSUPPORTED (kv_format), LIMIT (n_tokens above max_tokens, more than
 * 2^64 bytes), and for a path NOT_FOUND, IO, PERMISSION, CHECKPOINT, CHECKPOINT_UNSUPPORTED. Any thread. Since 0.1. */
DSV41_API dsv41_status dsv41_model_plan(dsv41_runtime* runtime, const dsv41_plan_options* options, dsv41_plan* out,
                                        dsv41_error* error);

/* What the pages and sessions of that plan consist of: page fields first. Buffer convention 5. Options and codes as
 * dsv41_model_plan. Any thread. Since 0.1. */
DSV41_API dsv41_status dsv41_model_plan_fields(dsv41_runtime* runtime, const dsv41_plan_options* options,
                                               dsv41_plan_field* buffer, size_t capacity, size_t* n,
                                               dsv41_error* error);

/* ---------------------------------------------------------------------------------------------------------- pool */

/* Makes KV memory for sessions of a model. Codes: LIMIT (more than the address space or the format allows). Any
 * thread. Since 0.1. */
DSV41_API dsv41_status dsv41_pool_create(dsv41_model* model, const dsv41_pool_options* options, dsv41_pool** out,
                                         dsv41_error* error);

/* Fills *out (not NULL). Any thread, callback-safe. Since 0.1. */
DSV41_API dsv41_status dsv41_pool_stats_get(dsv41_pool* pool, dsv41_pool_stats* out, dsv41_error* error);

/* Gives memory back: drops window entries, then cached pages, least recently used first, until window entries and pages
 * in use take at most target_bytes, and hands the memory of free pages to the system. What sessions hold stays: 0 drops
 * all that can be dropped. *freed (NULL: not wanted): bytes dropped. Costs later calls a replay or a prefill, never a
 * result. Any thread. Since 0.1. */
DSV41_API dsv41_status dsv41_pool_trim(dsv41_pool* pool, uint64_t target_bytes, uint64_t* freed, dsv41_error* error);

/* Checks the invariants of pages, prefix tree and window cache (states, counts, links); for tests and bug reports. Code:
 * INTERNAL, whose message names the broken one. Any thread, also while sessions run. Since 0.1. */
DSV41_API dsv41_status dsv41_pool_check(dsv41_pool* pool, dsv41_error* error);
DSV41_API void dsv41_pool_release(dsv41_pool* pool);

/* ------------------------------------------------------------------------------------------------------- session */

/* Makes an empty session. It takes no memory of the pool before its first call that runs the model. Any thread. Since
 * 0.1. */
DSV41_API dsv41_status dsv41_session_create(dsv41_pool* pool, const dsv41_session_options* options, dsv41_session** out,
                                            dsv41_error* error);

/* Makes a session with the first `position` tokens (at most the present position) and the options of this one; logits
 * too if that is all of them. `session` stays as it is. Never runs the model and takes no memory of the pool: both
 * share all pages and window rows until one of them writes. *info (NULL: not wanted): what the next call of the new
 * session has to do. The new session is one of its own: another thread may use it at once. Since 0.1. */
DSV41_API dsv41_status dsv41_session_fork(dsv41_session* session, uint64_t position, dsv41_session** out,
                                          dsv41_replay_info* info, dsv41_error* error);

/* Cuts the session to its first `position` tokens (at most the present position) and drops logits unless nothing is
 * cut. Never runs the model: where window rows for the next token are gone, the next call that runs the model sees to
 * it, and *info (NULL: not wanted) tells what it has to do, under the policies of `options` (NULL: the session's),
 * which the session does not keep. Windows at the old position go to the window cache. After NO_MEMORY the cut may be
 * made, and only *info be missing. Since 0.1. */
DSV41_API dsv41_status dsv41_session_truncate(dsv41_session* session, uint64_t position,
                                              const dsv41_replay_options* options, dsv41_replay_info* info,
                                              dsv41_error* error);

/* Empties the session; its options stay. Its pages stay cached, and windows at the old position go to the window cache.
 * Since 0.1. */
DSV41_API dsv41_status dsv41_session_reset(dsv41_session* session, dsv41_error* error);

/* Fills *out (not NULL). Since 0.1. */
DSV41_API dsv41_status dsv41_session_info_get(dsv41_session* session, dsv41_session_info* out, dsv41_error* error);

/* Copies the session's tokens from position `from` (at most the present position) on. Buffer convention 5. Since
 * 0.1. */
DSV41_API dsv41_status dsv41_session_tokens(dsv41_session* session, uint64_t from, int32_t* buffer, size_t capacity,
                                            size_t* n, dsv41_error* error);

/* *out (not NULL): how many tokens at the start of the session equal those of `input`. Since 0.1. */
DSV41_API dsv41_status dsv41_session_common_prefix(dsv41_session* session, const dsv41_input* input, uint64_t* out,
                                                   dsv41_error* error);

/* SHA-256 over parts of the session's state: DSV41_DIGEST_* bits, 0: all. Sessions of one model with the same state have
 * the same digest, wherever it lies in memory. out: [32] bytes, not NULL. Code: BACKEND. Since 0.1. */
DSV41_API dsv41_status dsv41_session_digest(dsv41_session* session, uint32_t parts, uint8_t out[32],
                                            dsv41_error* error);

/* Copies descriptions of the session's token pages, in the order of tokens. Buffer convention 5. Since 0.1. */
DSV41_API dsv41_status dsv41_session_pages(dsv41_session* session, dsv41_page_desc* buffer, size_t capacity, size_t* n,
                                           dsv41_error* error);
DSV41_API void dsv41_session_release(dsv41_session* session);

/* ----------------------------------------------------------------------- prefill, sync, decode, logits, generate */

/* Appends one or more tokens and computes the logits of the next one. input: not NULL. options: NULL for defaults.
 * result: NULL if not wanted. Chunks never change a result. With DSV41_DECODER_BOUNDED the decoder half sees at most
 * the last 128 tokens of the call, so two calls over the halves of a prompt are not one call over the whole. Into an
 * empty session it is a dsv41_sync. A failed or cancelled call leaves the session as it was, except that the window rows
 * of one that had to replay may be missing afterwards; result->position says so. Codes: CONTEXT_FULL, POOL_FULL (pages,
 * or window slots: max_sessions of the pool hold one), REPLAY_REQUIRED, CANCELLED, HOST_CALLBACK, NUMERIC. Since 0.1. */
DSV41_API dsv41_status dsv41_prefill(dsv41_session* session, const dsv41_input* input, const dsv41_run_options* options,
                                     dsv41_run_result* result, dsv41_error* error);

/* Makes the session hold exactly the tokens of `full` (one or more), with logits: keeps what it has in common with them
 * or takes cached pages and windows, whatever computes least, and computes the rest, at least one token unless the
 * session holds them already with logits. Otherwise as dsv41_prefill, except that a failed call may have cut the session
 * to the tokens it has in common with `full`; result->position tells. Since 0.1. */
DSV41_API dsv41_status dsv41_sync(dsv41_session* session, const dsv41_input* full, const dsv41_run_options* options,
                                  dsv41_run_result* result, dsv41_error* error);

/* Appends one token and computes the logits of the next one. As dsv41_prefill. Since 0.1. */
DSV41_API dsv41_status dsv41_decode(dsv41_session* session, int32_t token, const dsv41_run_options* options,
                                    dsv41_run_result* result, dsv41_error* error);

/* Copies the logits of the next token, [vocab_size]. Buffer convention 5. Code: STATE (new, truncated, reset or replayed
 * session). Since 0.1. */
DSV41_API dsv41_status dsv41_logits_copy(dsv41_session* session, float* buffer, size_t capacity, size_t* n,
                                         dsv41_error* error);

/* Copies the natural log-probabilities of the session's own tokens [from, position), as the last call with
 * want_logprobs computed them. Buffer convention 5. Code: STATE where one of them was not computed (position 0 never
 * is; under DSV41_DECODER_BOUNDED neither are those before the last 128 tokens of a call). Since 0.1. */
DSV41_API dsv41_status dsv41_logprobs_get(dsv41_session* session, uint64_t from, float* buffer, size_t capacity,
                                          size_t* n, dsv41_error* error);

/* Samples, reports and appends tokens until a stop token, a limit or the host's word. The session must have logits.
 * sampler: not NULL, of the same model. options: NULL for defaults. result: NULL if not wanted; also filled when the
 * call fails: tokens appended before the failure stay. When the call returns, every token given to token_fn is in
 * the session and accepted by the sampler; the stop token is in neither. Afterwards the session has logits again.
 * Codes: STATE (no logits), POOL_FULL, REPLAY_REQUIRED, CANCELLED, NUMERIC. Since 0.1. */
DSV41_API dsv41_status dsv41_generate(dsv41_session* session, dsv41_sampler* sampler,
                                      const dsv41_generate_options* options, dsv41_generate_result* result,
                                      dsv41_error* error);

/* -------------------------------------------------------------------------------------------------------- replay */

/* *out (not NULL): what dsv41_sync of `full` would do now, without doing it. options: NULL for the session's policies.
 * The prediction holds until a call changes the session, or the caches of its pool. Looking may count cached pages as
 * used. Codes: REPLAY_REQUIRED, CONTEXT_FULL. Since 0.1. */
DSV41_API dsv41_status dsv41_session_replay_plan(dsv41_session* session, const dsv41_input* full,
                                                 const dsv41_replay_options* options, dsv41_replay_plan* out,
                                                 dsv41_error* error);

/* Sets the policies of all later calls. options: NULL for defaults. Since 0.1. */
DSV41_API dsv41_status dsv41_session_set_replay(dsv41_session* session, const dsv41_replay_options* options,
                                                dsv41_error* error);

/* Rebuilds missing window rows now, so that the next token comes fast; no tokens are appended, and logits are dropped if
 * anything runs. which: DSV41_REPLAY_* bits, 0: both halves. options, result, codes and state after a failure: as
 * dsv41_prefill. Since 0.1. */
DSV41_API dsv41_status dsv41_session_replay(dsv41_session* session, uint32_t which, const dsv41_run_options* options,
                                            dsv41_run_result* result, dsv41_error* error);

/* Computes again whatever descends from an encoder bounded replay, so that session and logits are those of a run without
 * any; an exact session stays as it is. options, result, codes and state after a failure: as dsv41_sync. Since 0.1. */
DSV41_API dsv41_status dsv41_session_make_exact(dsv41_session* session, const dsv41_run_options* options,
                                                dsv41_run_result* result, dsv41_error* error);

/* Copies what the session's global KV descends from: ranges that follow each other from the first token to the last,
 * neighbours with different lists, and the lists, one behind the other. Two buffers, each after convention 5: a
 * capacity of 0 only asks; if one is too small, neither is written. Since 0.1. */
DSV41_API dsv41_status dsv41_session_provenance(dsv41_session* session, dsv41_range* ranges, size_t range_capacity,
                                                size_t* n_ranges, uint64_t* hits, size_t hit_capacity, size_t* n_hits,
                                                dsv41_error* error);

/* ------------------------------------------------------------------------------------------------------- sampler */

/* Makes a sampler for the vocabulary of a model. options: NULL for greedy. Any thread. Since 0.1. */
DSV41_API dsv41_status dsv41_sampler_create(dsv41_model* model, const dsv41_sampler_options* options,
                                            dsv41_sampler** out, dsv41_error* error);

/* A copy with the same options and history. Since 0.1. */
DSV41_API dsv41_status dsv41_sampler_clone(dsv41_sampler* sampler, dsv41_sampler** out, dsv41_error* error);

/* Draws the next token of the session into *out (not NULL) and changes neither the session nor the history. Codes:
 * STATE (no logits), NUMERIC (logits are not finite). Since 0.1. */
DSV41_API dsv41_status dsv41_sample(dsv41_sampler* sampler, dsv41_session* session, dsv41_sample_result* out,
                                    dsv41_error* error);

/* Adds a token to the history that penalties look at. Since 0.1. */
DSV41_API dsv41_status dsv41_sampler_accept(dsv41_sampler* sampler, int32_t token, dsv41_error* error);
DSV41_API void dsv41_sampler_release(dsv41_sampler* sampler);

/* ----------------------------------------------------------------------------------------------- tokens and text */

/* dsv41_tokenize: literals of special tokens in the text become those tokens. Only for text that the host trusts. */
#define DSV41_TOKENIZE_SPECIALS 1u
/* dsv41_detokenize: special tokens give no text (else their literal). */
#define DSV41_DETOKENIZE_SKIP_SPECIALS 1u

/* Text to tokens. Any bytes are accepted and come back unchanged. flags: DSV41_TOKENIZE_*. Buffer convention 5. Any
 * thread, callback-safe. Since 0.1. */
DSV41_API dsv41_status dsv41_tokenize(dsv41_model* model, const char* text, size_t size, uint32_t flags,
                                      int32_t* buffer, size_t capacity, size_t* n, dsv41_error* error);

/* Tokens to the bytes they stand for; a cut inside a character gives a part of it (dsv41_textstream does not).
 * flags: DSV41_DETOKENIZE_*. Buffer convention 5. Any thread, callback-safe. Since 0.1. */
DSV41_API dsv41_status dsv41_detokenize(dsv41_model* model, const int32_t* tokens, size_t n_tokens, uint32_t flags,
                                        char* buffer, size_t capacity, size_t* n, dsv41_error* error);

enum {
  DSV41_SPECIAL_BOS = 1,
  DSV41_SPECIAL_EOS = 2,
  DSV41_SPECIAL_PAD = 3,
  DSV41_SPECIAL_SYSTEM = 4,
  DSV41_SPECIAL_USER = 5,
  DSV41_SPECIAL_ASSISTANT = 6,
  DSV41_SPECIAL_LATEST_REMINDER = 7,
  DSV41_SPECIAL_THINK_BEGIN = 8,
  DSV41_SPECIAL_THINK_END = 9,
  DSV41_SPECIAL_DSML = 10,
  DSV41_SPECIAL_IMAGE = 11
};

/* *out (not NULL): id of a special token, DSV41_SPECIAL_*. Code: NOT_FOUND (the vocabulary lacks it). Any thread,
 * callback-safe. Since 0.1. */
DSV41_API dsv41_status dsv41_special_token(dsv41_model* model, uint32_t which, int32_t* out, dsv41_error* error);

/* A stream that turns tokens into text as they come and never hands out a part of a character. Any thread,
 * callback-safe. Since 0.1. */
DSV41_API dsv41_status dsv41_textstream_create(dsv41_model* model, dsv41_textstream** out, dsv41_error* error);

/* Adds a token. *text, *size (not NULL): the text that is complete now, maybe empty; valid until the next call on
 * the stream. Special tokens give their literal. Callback-safe. Since 0.1. */
DSV41_API dsv41_status dsv41_textstream_push(dsv41_textstream* stream, int32_t token, const char** text, size_t* size,
                                             dsv41_error* error);

/* The end: an unfinished character comes out as U+FFFD; the stream is empty again. Outputs as push. Callback-safe.
 * Since 0.1. */
DSV41_API dsv41_status dsv41_textstream_flush(dsv41_textstream* stream, const char** text, size_t* size,
                                              dsv41_error* error);
DSV41_API void dsv41_textstream_release(dsv41_textstream* stream);

/* Messages to the tokens of a prompt, in the model's chat format. request: a JSON object;
 * defaults in brackets, unknown members are ignored, null counts as absent:
 *
 *    {"messages": [MESSAGE, ...],
 *     "mode": "chat" | "thinking" ["chat"],
 *     "effort": 1..100 or "low" (50) | "high" (75) | "max" (100) [75]     thinking mode only
 *     "drop_thinking": bool [true]       leave out the reasoning of turns before the last user turn,
 *                                        unless there are tools
 *     "open_turn": bool [false]          the last message is an assistant turn to be continued
 *     "specials_in_text": bool [false]   literals of special tokens in message text become these tokens: only for text
 *                                        that the host wrote itself
 *     "tools": [TOOL, ...]}              as if given by a leading system message, which is made if there is none
 *
 *    MESSAGE: {"role": "system" | "user" | "assistant" | "tool" | "latest_reminder" | "developer",
 *      "content": string or list of parts [""]:
 *          {"type": "text", "text": string}
 *          {"type": "tool_result", "tool_use_id" or "tool_call_id": string, "content": string or list of text parts}
 *                                                            (user only; the same as a tool message in this place)
 *          {"type": "image" | "image_url", ...}              (UNSUPPORTED)
 *          any other type becomes the text "[Unsupported TYPE]"
 *      "tools": [TOOL, ...]              system, developer: shown to the model; any message: nothing is dropped then
 *      "response_format": any JSON       system, developer: schema of the reply
 *      "reasoning" or "reasoning_content": string                assistant
 *      "tool_calls": [{"id": string, "name": string, "arguments": object or its JSON text}, ...]   assistant; name and
 *                                        arguments may stand inside "function" instead
 *      "tokens": [id, ...]               assistant: the sampled token ids of this turn, used instead of its texts
 *      "tool_call_id": string            tool
 *      "task": "action" | "query" | "authority" | "domain" | "title" | "read_url"}
 *                                        user, developer, later system, tool
 *
 *    TOOL: {"type": "function", "function": SCHEMA} or SCHEMA; SCHEMA is shown as it is.
 *
 * Text of messages never turns into special tokens. Buffer convention 5. Codes: TEMPLATE (the message names the place),
 * UNSUPPORTED (images). Any thread, callback-safe. Since 0.1. */
DSV41_API dsv41_status dsv41_chat_render(dsv41_model* model, const char* request, size_t size, int32_t* buffer,
                                         size_t capacity, size_t* n, dsv41_error* error);

/* A parser of the model's reply: reasoning, answer, tool calls. Push tokens as they are sampled, finish at the end,
 * and fetch events after each call. options: NULL for a reply without reasoning. Since 0.1. */
DSV41_API dsv41_status dsv41_chatparse_create(dsv41_model* model, const dsv41_chatparse_options* options,
                                              dsv41_chatparse** out, dsv41_error* error);

/* Adds a token of the reply. Text that may still turn out to be markup is held back. Callback-safe. Code: STATE
 * (after finish). Since 0.1. */
DSV41_API dsv41_status dsv41_chatparse_push(dsv41_chatparse* parser, int32_t token, dsv41_error* error);

/* The reply is over (also where it was cut off): gives out what was held back. Callback-safe. Since 0.1. */
DSV41_API dsv41_status dsv41_chatparse_finish(dsv41_chatparse* parser, dsv41_error* error);

/* The next event into *out (not NULL): DSV41_OK, or DSV41_END (not an error) when there is none now. Callback-safe.
 * Since 0.1. */
DSV41_API dsv41_status dsv41_chatparse_next(dsv41_chatparse* parser, dsv41_chat_event* out, dsv41_error* error);

/* Copies the exact token ids of a part of the reply so far, DSV41_CHAT_PART_*. A token belongs to the part of its
 * first byte. Hosts keep the ids of the whole reply and give them back as "tokens" of the message, so that the next
 * prompt begins with the very tokens that the session holds. Buffer convention 5. Callback-safe. Since 0.1. */
DSV41_API dsv41_status dsv41_chatparse_tokens(dsv41_chatparse* parser, uint32_t part, int32_t* buffer, size_t capacity,
                                              size_t* n, dsv41_error* error);
DSV41_API void dsv41_chatparse_release(dsv41_chatparse* parser);

/* ------------------------------------------------------------------------------------------------------- metrics */

/* Fills *out (not NULL). Any thread, callback-safe. Since 0.1. */
DSV41_API dsv41_status dsv41_metrics_get(dsv41_runtime* runtime, dsv41_metrics* out, dsv41_error* error);

/* *out: static array of *n descriptions, one per field of dsv41_metrics. Any thread, callback-safe. Since 0.1. */
DSV41_API dsv41_status dsv41_metric_list(const dsv41_metric_desc** out, size_t* n, dsv41_error* error);

/* *out (not NULL): one metric. Code: NOT_FOUND (unknown id). Any thread, callback-safe. Since 0.1. */
DSV41_API dsv41_status dsv41_metric_value(dsv41_runtime* runtime, uint32_t metric, uint64_t* out, dsv41_error* error);

/* ----------------------------------------------------------------------------------------------------- snapshots */

/* As the other dsv41_X_init. Since 0.1. */
DSV41_API void dsv41_writer_init(dsv41_writer* writer, size_t size);
DSV41_API void dsv41_reader_init(dsv41_reader* reader, size_t size);
DSV41_API void dsv41_snapshot_options_init(dsv41_snapshot_options* options, size_t size);
DSV41_API void dsv41_snapshot_info_init(dsv41_snapshot_info* info, size_t size);
DSV41_API void dsv41_verify_report_init(dsv41_verify_report* report, size_t size);
DSV41_API void dsv41_compat_report_init(dsv41_compat_report* report, size_t size);
DSV41_API void dsv41_restore_options_init(dsv41_restore_options* options, size_t size);
DSV41_API void dsv41_restore_info_init(dsv41_restore_info* info, size_t size);

/* *bound (not NULL): the largest size in bytes that a save of the session as it is can have. options: NULL for defaults.
 * Codes as dsv41_snapshot_save_file. Since 0.1. */
DSV41_API dsv41_status dsv41_snapshot_size(dsv41_session* session, const dsv41_snapshot_options* options,
                                           uint64_t* bound, dsv41_error* error);

/* Saves the session to a file, which appears, or replaces an older one of that path, whole. Who has the older one open
 * goes on reading it. path: UTF-8. options: NULL for defaults. info (NULL: not wanted): what was written. Saving the
 * same session twice gives the same bytes but for saved_unix_ns. A failed save leaves no file and the older one as it
 * was, except that after the failure of the very last step, the sync of the folder, the new one is there. Codes:
 * REPLAY_REQUIRED (FULL, and window rows are missing: dsv41_session_replay brings them), STATE (FULL at a durable
 * point), CANCELLED, NOT_FOUND, PERMISSION, NO_SPACE, IO, LIMIT (more sections than the format has). Inside a progress
 * callback: DSV41_PROGRESS_DURABLE_POINT. Since 0.1. */
DSV41_API dsv41_status dsv41_snapshot_save_file(dsv41_session* session, const char* path, size_t path_size,
                                                const dsv41_snapshot_options* options, dsv41_snapshot_info* info,
                                                dsv41_error* error);

/* The same into memory. Buffer convention 5, in bytes. One pass where capacity is at least what dsv41_snapshot_size
 * says; else one pass more, to learn the size. Since 0.1. */
DSV41_API dsv41_status dsv41_snapshot_save_buffer(dsv41_session* session, const dsv41_snapshot_options* options,
                                                  void* buffer, size_t capacity, size_t* n, dsv41_error* error);

/* The same through functions of the host. writer: not NULL. Code: HOST_CALLBACK. Since 0.1. */
DSV41_API dsv41_status dsv41_snapshot_save_io(dsv41_session* session, const dsv41_writer* writer,
                                              const dsv41_snapshot_options* options, dsv41_snapshot_info* info,
                                              dsv41_error* error);

/* Opens a snapshot: reads and checks head, table, and what the file says of itself; no model is needed. The file stays
 * open, and readable as it was, until the snapshot is released. Codes: NOT_FOUND, PERMISSION, IO, NOT_SNAPSHOT,
 * FORMAT_VERSION (written by a newer library), IO_SHORT (cut off), CHECKSUM, CORRUPT, SECTION_MISSING,
 * CODEC_UNAVAILABLE, LIMIT. Any thread. Since 0.1. */
DSV41_API dsv41_status dsv41_snapshot_open_file(dsv41_runtime* runtime, const char* path, size_t path_size,
                                                dsv41_snapshot** out, dsv41_error* error);

/* The same from memory, [size] bytes, which must stay as they are until the snapshot is released. Since 0.1. */
DSV41_API dsv41_status dsv41_snapshot_open_buffer(dsv41_runtime* runtime, const void* bytes, size_t size,
                                                  dsv41_snapshot** out, dsv41_error* error);

/* The same through functions of the host. reader: not NULL. After a failure close_fn is not called. Code: HOST_CALLBACK,
 * here and in all calls below that read. Since 0.1. */
DSV41_API dsv41_status dsv41_snapshot_open_io(dsv41_runtime* runtime, const dsv41_reader* reader, dsv41_snapshot** out,
                                              dsv41_error* error);

/* Fills *out (not NULL). Callback-safe. Since 0.1. */
DSV41_API dsv41_status dsv41_snapshot_info_get(dsv41_snapshot* snapshot, dsv41_snapshot_info* out, dsv41_error* error);

/* Checks the file as far as DSV41_VERIFY_* says. *report (NULL: not wanted) is filled whether damage is found or not.
 * Codes: CHECKSUM or CORRUPT (damage), and those of reading. Since 0.1. */
DSV41_API dsv41_status dsv41_snapshot_verify(dsv41_snapshot* snapshot, uint32_t level, dsv41_verify_report* report,
                                             dsv41_error* error);

/* Copies the tokens. Buffer convention 5. Codes: those of opening. Since 0.1. */
DSV41_API dsv41_status dsv41_snapshot_tokens(dsv41_snapshot* snapshot, int32_t* buffer, size_t capacity, size_t* n,
                                             dsv41_error* error);

/* Copies the numbers of the host's sections, ascending. Buffer convention 5. Callback-safe. Since 0.1. */
DSV41_API dsv41_status dsv41_snapshot_host_ids(dsv41_snapshot* snapshot, uint32_t* buffer, size_t capacity, size_t* n,
                                               dsv41_error* error);

/* Copies the bytes of a section of the host's. Buffer convention 5. Code: NOT_FOUND. Since 0.1. */
DSV41_API dsv41_status dsv41_snapshot_host_section(dsv41_snapshot* snapshot, uint32_t id, void* buffer, size_t capacity,
                                                   size_t* n, dsv41_error* error);

/* Makes a sampler with the saved options and history. Codes: SECTION_MISSING, CORRUPT (of another vocabulary, or
 * damaged). Since 0.1. */
DSV41_API dsv41_status dsv41_snapshot_sampler(dsv41_snapshot* snapshot, dsv41_model* model, dsv41_sampler** out,
                                              dsv41_error* error);

/* *report (not NULL): whether a restore with this model can work. Computes the model's fingerprint if nothing did
 * before: dsv41_model_fingerprint. Since 0.1. */
DSV41_API dsv41_status dsv41_snapshot_compatible(dsv41_snapshot* snapshot, dsv41_model* model,
                                                 dsv41_compat_report* report, dsv41_error* error);

/* Makes a session of the snapshot, without running the model. options: NULL for defaults; without a salt of the
 * session's set salt too. info, replay (NULL: not wanted): what came back, and what the next call has to do. A failure
 * leaves nothing but, perhaps, cached pages. Codes: those of opening, MODEL_MISMATCH, LAYOUT_MISMATCH,
 * NUMERIC_MISMATCH, NAMESPACE_MISMATCH, TOKENS_MISMATCH, SECTION_MISSING, CONTEXT_FULL (max_tokens), POOL_FULL, NUMERIC
 * (saved logits are not finite), CANCELLED, BACKEND. Since 0.1. */
DSV41_API dsv41_status dsv41_snapshot_restore(dsv41_snapshot* snapshot, dsv41_pool* pool,
                                              const dsv41_restore_options* options, dsv41_session** out,
                                              dsv41_restore_info* info, dsv41_replay_info* replay, dsv41_error* error);

/* The same into a session, in place of what it holds; a failed call leaves it as it was. It keeps its limits, policies
 * and salt: those fields of options are not looked at. Both states are in the pool for a moment. Since 0.1. */
DSV41_API dsv41_status dsv41_snapshot_restore_into(dsv41_snapshot* snapshot, dsv41_session* session,
                                                   const dsv41_restore_options* options, dsv41_restore_info* info,
                                                   dsv41_replay_info* replay, dsv41_error* error);

/* Writes the content anew: with other compression, without some of its parts. Of options only no_compression,
 * zstd_level and cancel count. unwanted_parts: DSV41_PART_* bits; tokens and global KV stay, and without its encoder
 * windows or open rows a FULL snapshot becomes PREFIX. No model is needed. Codes: those of opening, CANCELLED,
 * HOST_CALLBACK. Since 0.1. */
DSV41_API dsv41_status dsv41_snapshot_rewrite(dsv41_snapshot* snapshot, const dsv41_writer* writer,
                                              const dsv41_snapshot_options* options, uint32_t unwanted_parts,
                                              dsv41_error* error);
DSV41_API void dsv41_snapshot_release(dsv41_snapshot* snapshot);

/* -------------------------------------------------------------------------------------------------------- stores */

/* As the other dsv41_X_init. Since 0.1. */
DSV41_API void dsv41_object_store_init(dsv41_object_store* objects, size_t size);
DSV41_API void dsv41_store_options_init(dsv41_store_options* options, size_t size);
DSV41_API void dsv41_attach_options_init(dsv41_attach_options* options, size_t size);
DSV41_API void dsv41_lookup_options_init(dsv41_lookup_options* options, size_t size);
DSV41_API void dsv41_match_info_init(dsv41_match_info* info, size_t size);
DSV41_API void dsv41_put_options_init(dsv41_put_options* options, size_t size);
DSV41_API void dsv41_put_result_init(dsv41_put_result* result, size_t size);
DSV41_API void dsv41_store_entry_init(dsv41_store_entry* entry, size_t size);
DSV41_API void dsv41_gc_report_init(dsv41_gc_report* report, size_t size);
DSV41_API void dsv41_store_verify_report_init(dsv41_store_verify_report* report, size_t size);
DSV41_API void dsv41_store_stats_init(dsv41_store_stats* stats, size_t size);

/* Opens a store, or makes an empty one. options: not NULL. Reads the heads of all records, about 400 bytes for each page
 * of 128 tokens. What an earlier writer left half written is removed, what is damaged is counted. Codes: LOCKED,
 * NOT_FOUND (DSV41_LOCK_READER), FORMAT_VERSION, CORRUPT, PERMISSION, NO_SPACE, IO, HOST_CALLBACK. Any thread. Since
 * 0.1. */
DSV41_API dsv41_status dsv41_store_open(dsv41_runtime* runtime, const dsv41_store_options* options, dsv41_store** out,
                                        dsv41_error* error);

/* Makes the store one more place where dsv41_sync and dsv41_prefill of this pool look, and dsv41_session_replay_plan.
 * Keys of the pool's pages follow from the store's seed from now on. A store that fails or holds damage never fails a
 * call: it computes what it does not get. options: NULL for defaults. Codes: STATE (the pool has a store already, a
 * session, or pages in use or cached), and those of dsv41_model_fingerprint. Any thread. Since 0.1. */
DSV41_API dsv41_status dsv41_pool_attach_store(dsv41_pool* pool, dsv41_store* store,
                                               const dsv41_attach_options* options, dsv41_error* error);

/* Looks for the longest part of `input` from its first token on. DSV41_OK: *out is a match, which keeps its records in
 * the store until it is released; DSV41_MISS (not an error): there is nothing, and *out stays untouched. options: NULL
 * for defaults. Reads no record. Codes: those of dsv41_model_fingerprint. Any thread. Since 0.1. */
DSV41_API dsv41_status dsv41_store_lookup(dsv41_store* store, dsv41_model* model, const dsv41_input* input,
                                          const dsv41_lookup_options* options, dsv41_match** out, dsv41_error* error);

/* Fills *out (not NULL). Callback-safe. Since 0.1. */
DSV41_API dsv41_status dsv41_match_info_get(dsv41_match* match, dsv41_match_info* out, dsv41_error* error);

/* Copies the tokens of the match: as many of the input's. Buffer convention 5. Callback-safe. Since 0.1. */
DSV41_API dsv41_status dsv41_match_tokens(dsv41_match* match, int32_t* buffer, size_t capacity, size_t* n,
                                          dsv41_error* error);

/* *out (not NULL): what dsv41_sync of `full`, which begins with the tokens of the match, would do after a restore,
 * without other help of the pool's caches. options: NULL for defaults. Codes: TOKENS_MISMATCH, REPLAY_REQUIRED, and
 * where the state has to be read those of reading. Since 0.1. */
DSV41_API dsv41_status dsv41_match_replay_plan(dsv41_match* match, const dsv41_input* full,
                                               const dsv41_replay_options* options, dsv41_replay_plan* out,
                                               dsv41_error* error);

/* Opens the state of the match as a snapshot, for its sampler and host sections: dsv41_snapshot_info_get, _verify,
 * _host_ids, _host_section, _sampler. It has neither tokens nor pages: dsv41_snapshot_tokens answers SECTION_MISSING,
 * _restore UNSUPPORTED. Codes: NOT_FOUND (pages alone), and those of dsv41_store_restore. Since 0.1. */
DSV41_API dsv41_status dsv41_match_state(dsv41_match* match, dsv41_snapshot** out, dsv41_error* error);
DSV41_API void dsv41_match_release(dsv41_match* match);

/* Makes a session of the match. store: the one that was looked in. options, info, replay: as dsv41_snapshot_restore; no
 * salt in options means that of the lookup. Where a record turns out damaged, the session has the tokens before it, and
 * info->position tells; NOT_FOUND where there are none. Codes: NUMERIC_MISMATCH, NAMESPACE_MISMATCH, TOKENS_MISMATCH,
 * SECTION_MISSING, CONTEXT_FULL, POOL_FULL, CANCELLED, BACKEND. Since 0.1. */
DSV41_API dsv41_status dsv41_store_restore(dsv41_store* store, dsv41_match* match, dsv41_pool* pool,
                                           const dsv41_restore_options* options, dsv41_session** out,
                                           dsv41_restore_info* info, dsv41_replay_info* replay, dsv41_error* error);

/* Puts the session's pages, those that are not there yet, and its state into the store. options: NULL for defaults.
 * result (NULL: not wanted): also filled where the store declines, which answers DSV41_NOT_ADMITTED (not an error);
 * pages that were taken in before stay. Waits while the queue is full. A write that fails later is told by
 * dsv41_store_flush. Codes: UNSUPPORTED (read only), STATE (an empty session), REPLAY_REQUIRED and STATE as
 * dsv41_snapshot_save_file, CANCELLED, LIMIT (a state above 64 MiB), BACKEND; with flush those of writing. Inside a
 * progress callback: DSV41_PROGRESS_DURABLE_POINT. Since 0.1. */
DSV41_API dsv41_status dsv41_store_put(dsv41_store* store, dsv41_session* session, const dsv41_put_options* options,
                                       dsv41_put_result* result, dsv41_error* error);

/* Keeps a record, and the pages below it, whatever the budget and their age, until it is unpinned as often as it was
 * pinned; in a folder also after the store is closed. key: [16] bytes. reason: UTF-8, for whoever looks later; NULL:
 * none. Codes: NOT_FOUND, UNSUPPORTED (read only), LIMIT (a reason above 4,096 bytes). Any thread. Since 0.1. */
DSV41_API dsv41_status dsv41_store_pin(dsv41_store* store, const uint8_t key[16], const char* reason,
                                       size_t reason_size, dsv41_error* error);

/* Takes a pin back. Codes: NOT_FOUND, STATE (it has none), UNSUPPORTED. Any thread. Since 0.1. */
DSV41_API dsv41_status dsv41_store_unpin(dsv41_store* store, const uint8_t key[16], dsv41_error* error);

/* Removes a record and all that stands on it, for good when the call returns. Codes: NOT_FOUND, BUSY (one of them is
 * pinned, or held by a match), UNSUPPORTED. Any thread. Since 0.1. */
DSV41_API dsv41_status dsv41_store_remove(dsv41_store* store, const uint8_t key[16], dsv41_error* error);

/* Removes what has expired, then the least recently used, until the store takes at most target_bytes on disk
 * (UINT64_MAX: only what has expired), and brings files that are half empty together. cancel: NULL: none. report: NULL:
 * not wanted. Codes: UNSUPPORTED (read only), CANCELLED, and those of writing. Any thread. Since 0.1. */
DSV41_API dsv41_status dsv41_store_gc(dsv41_store* store, uint64_t target_bytes, dsv41_cancel* cancel,
                                      dsv41_gc_report* report, dsv41_error* error);

/* Waits until everything that was put is durable. Answers the first failure of a write since the last flush: NO_SPACE,
 * IO, PERMISSION, HOST_CALLBACK; or CANCELLED. cancel: NULL: none. Any thread. Since 0.1. */
DSV41_API dsv41_status dsv41_store_flush(dsv41_store* store, dsv41_cancel* cancel, dsv41_error* error);

/* An iterator over the records as they are now, each page before what stands on it. Any thread. Since 0.1. */
DSV41_API dsv41_status dsv41_store_iter_create(dsv41_store* store, dsv41_store_iter** out, dsv41_error* error);

/* The next record into *out (not NULL), or DSV41_END (not an error). Callback-safe. Since 0.1. */
DSV41_API dsv41_status dsv41_store_iter_next(dsv41_store_iter* iter, dsv41_store_entry* out, dsv41_error* error);
DSV41_API void dsv41_store_iter_release(dsv41_store_iter* iter);

/* Looks at every record: its head, and if deep is 1 all of it, decompressed. Bad ones are set aside. *report (NULL: not
 * wanted) is filled whether there are any or not. Codes: CORRUPT (there are), CANCELLED, and those of reading. cancel:
 * NULL: none. Any thread. Since 0.1. */
DSV41_API dsv41_status dsv41_store_verify(dsv41_store* store, uint32_t deep, dsv41_cancel* cancel,
                                          dsv41_store_verify_report* report, dsv41_error* error);

/* Fills *out (not NULL). Any thread, callback-safe. Since 0.1. */
DSV41_API dsv41_status dsv41_store_stats_get(dsv41_store* store, dsv41_store_stats* out, dsv41_error* error);

/* Looks for what other processes have added. A read-only store does so by itself, at most once in a second, when it
 * misses something. Codes: those of opening. Any thread. Since 0.1. */
DSV41_API dsv41_status dsv41_store_refresh(dsv41_store* store, dsv41_error* error);

/* A store is closed when its handle, its matches, its iterators and the pools that it is attached to are gone: what
 * waits is written, and no function of dsv41_object_store runs any more when that release returns. */
DSV41_API void dsv41_store_release(dsv41_store* store);

/* -------------------------------------------------------------------------------------------- table of functions */

/* Every function of this header, for hosts that load the library at run time (dlopen): fetch dsv41_get_api by name,
 * call the rest through it. Fields are only ever appended: look at struct_size before using one that is younger than
 * 0.1. */
typedef struct dsv41_api {
  uint32_t struct_size;
  uint32_t table_version; /* what dsv41_abi_version() returns */
  void (*error_init)(dsv41_error* error, size_t size);
  void (*build_info_init)(dsv41_build_info* info, size_t size);
  void (*runtime_options_init)(dsv41_runtime_options* options, size_t size);
  void (*model_options_init)(dsv41_model_options* options, size_t size);
  void (*model_info_init)(dsv41_model_info* info, size_t size);
  void (*fingerprint_init)(dsv41_fingerprint* fingerprint, size_t size);
  void (*plan_options_init)(dsv41_plan_options* options, size_t size);
  void (*plan_init)(dsv41_plan* plan, size_t size);
  void (*pool_options_init)(dsv41_pool_options* options, size_t size);
  void (*pool_stats_init)(dsv41_pool_stats* stats, size_t size);
  void (*session_options_init)(dsv41_session_options* options, size_t size);
  void (*session_info_init)(dsv41_session_info* info, size_t size);
  void (*input_init)(dsv41_input* input, size_t size);
  void (*run_options_init)(dsv41_run_options* options, size_t size);
  void (*run_result_init)(dsv41_run_result* result, size_t size);
  void (*replay_options_init)(dsv41_replay_options* options, size_t size);
  void (*replay_plan_init)(dsv41_replay_plan* plan, size_t size);
  void (*replay_info_init)(dsv41_replay_info* info, size_t size);
  void (*sampler_options_init)(dsv41_sampler_options* options, size_t size);
  void (*sample_result_init)(dsv41_sample_result* result, size_t size);
  void (*generate_options_init)(dsv41_generate_options* options, size_t size);
  void (*generate_result_init)(dsv41_generate_result* result, size_t size);
  void (*chatparse_options_init)(dsv41_chatparse_options* options, size_t size);
  void (*chat_event_init)(dsv41_chat_event* event, size_t size);
  void (*metrics_init)(dsv41_metrics* metrics, size_t size);
  uint32_t (*abi_version)(void);
  const char* (*version_string)(void);
  dsv41_status (*build_info_get)(dsv41_build_info* out, dsv41_error* error);
  int32_t (*has_capability)(uint32_t capability);
  const char* (*status_name)(dsv41_status status);
  const char* (*status_text)(dsv41_status status);
  dsv41_status (*layout_table)(const dsv41_layout_entry** out, size_t* n, dsv41_error* error);
  dsv41_status (*runtime_create)(const dsv41_runtime_options* options, dsv41_runtime** out, dsv41_error* error);
  void (*runtime_release)(dsv41_runtime* runtime);
  dsv41_status (*cancel_create)(dsv41_runtime* runtime, dsv41_cancel** out, dsv41_error* error);
  void (*cancel_trigger)(dsv41_cancel* cancel);
  void (*cancel_reset)(dsv41_cancel* cancel);
  void (*cancel_release)(dsv41_cancel* cancel);
  dsv41_status (*model_open)(dsv41_runtime* runtime, const dsv41_model_options* options, dsv41_model** out,
                             dsv41_error* error);
  dsv41_status (*model_info_get)(dsv41_model* model, dsv41_model_info* out, dsv41_error* error);
  dsv41_status (*model_fingerprint)(dsv41_model* model, dsv41_fingerprint* out, dsv41_error* error);
  void (*model_release)(dsv41_model* model);
  dsv41_status (*model_plan)(dsv41_runtime* runtime, const dsv41_plan_options* options, dsv41_plan* out,
                             dsv41_error* error);
  dsv41_status (*model_plan_fields)(dsv41_runtime* runtime, const dsv41_plan_options* options, dsv41_plan_field* buffer,
                                    size_t capacity, size_t* n, dsv41_error* error);
  dsv41_status (*pool_create)(dsv41_model* model, const dsv41_pool_options* options, dsv41_pool** out,
                              dsv41_error* error);
  dsv41_status (*pool_stats_get)(dsv41_pool* pool, dsv41_pool_stats* out, dsv41_error* error);
  dsv41_status (*pool_trim)(dsv41_pool* pool, uint64_t target_bytes, uint64_t* freed, dsv41_error* error);
  dsv41_status (*pool_check)(dsv41_pool* pool, dsv41_error* error);
  void (*pool_release)(dsv41_pool* pool);
  dsv41_status (*session_create)(dsv41_pool* pool, const dsv41_session_options* options, dsv41_session** out,
                                 dsv41_error* error);
  dsv41_status (*session_fork)(dsv41_session* session, uint64_t position, dsv41_session** out, dsv41_replay_info* info,
                               dsv41_error* error);
  dsv41_status (*session_truncate)(dsv41_session* session, uint64_t position, const dsv41_replay_options* options,
                                   dsv41_replay_info* info, dsv41_error* error);
  dsv41_status (*session_reset)(dsv41_session* session, dsv41_error* error);
  dsv41_status (*session_info_get)(dsv41_session* session, dsv41_session_info* out, dsv41_error* error);
  dsv41_status (*session_tokens)(dsv41_session* session, uint64_t from, int32_t* buffer, size_t capacity, size_t* n,
                                 dsv41_error* error);
  dsv41_status (*session_common_prefix)(dsv41_session* session, const dsv41_input* input, uint64_t* out,
                                        dsv41_error* error);
  dsv41_status (*session_digest)(dsv41_session* session, uint32_t parts, uint8_t out[32], dsv41_error* error);
  dsv41_status (*session_pages)(dsv41_session* session, dsv41_page_desc* buffer, size_t capacity, size_t* n,
                                dsv41_error* error);
  void (*session_release)(dsv41_session* session);
  dsv41_status (*prefill)(dsv41_session* session, const dsv41_input* input, const dsv41_run_options* options,
                          dsv41_run_result* result, dsv41_error* error);
  dsv41_status (*sync)(dsv41_session* session, const dsv41_input* full, const dsv41_run_options* options,
                       dsv41_run_result* result, dsv41_error* error);
  dsv41_status (*decode)(dsv41_session* session, int32_t token, const dsv41_run_options* options,
                         dsv41_run_result* result, dsv41_error* error);
  dsv41_status (*logits_copy)(dsv41_session* session, float* buffer, size_t capacity, size_t* n, dsv41_error* error);
  dsv41_status (*logprobs_get)(dsv41_session* session, uint64_t from, float* buffer, size_t capacity, size_t* n,
                               dsv41_error* error);
  dsv41_status (*generate)(dsv41_session* session, dsv41_sampler* sampler, const dsv41_generate_options* options,
                           dsv41_generate_result* result, dsv41_error* error);
  dsv41_status (*session_replay_plan)(dsv41_session* session, const dsv41_input* full,
                                      const dsv41_replay_options* options, dsv41_replay_plan* out, dsv41_error* error);
  dsv41_status (*session_set_replay)(dsv41_session* session, const dsv41_replay_options* options, dsv41_error* error);
  dsv41_status (*session_replay)(dsv41_session* session, uint32_t which, const dsv41_run_options* options,
                                 dsv41_run_result* result, dsv41_error* error);
  dsv41_status (*session_make_exact)(dsv41_session* session, const dsv41_run_options* options, dsv41_run_result* result,
                                     dsv41_error* error);
  dsv41_status (*session_provenance)(dsv41_session* session, dsv41_range* ranges, size_t range_capacity,
                                     size_t* n_ranges, uint64_t* hits, size_t hit_capacity, size_t* n_hits,
                                     dsv41_error* error);
  dsv41_status (*sampler_create)(dsv41_model* model, const dsv41_sampler_options* options, dsv41_sampler** out,
                                 dsv41_error* error);
  dsv41_status (*sampler_clone)(dsv41_sampler* sampler, dsv41_sampler** out, dsv41_error* error);
  dsv41_status (*sample)(dsv41_sampler* sampler, dsv41_session* session, dsv41_sample_result* out, dsv41_error* error);
  dsv41_status (*sampler_accept)(dsv41_sampler* sampler, int32_t token, dsv41_error* error);
  void (*sampler_release)(dsv41_sampler* sampler);
  dsv41_status (*tokenize)(dsv41_model* model, const char* text, size_t size, uint32_t flags, int32_t* buffer,
                           size_t capacity, size_t* n, dsv41_error* error);
  dsv41_status (*detokenize)(dsv41_model* model, const int32_t* tokens, size_t n_tokens, uint32_t flags, char* buffer,
                             size_t capacity, size_t* n, dsv41_error* error);
  dsv41_status (*special_token)(dsv41_model* model, uint32_t which, int32_t* out, dsv41_error* error);
  dsv41_status (*textstream_create)(dsv41_model* model, dsv41_textstream** out, dsv41_error* error);
  dsv41_status (*textstream_push)(dsv41_textstream* stream, int32_t token, const char** text, size_t* size,
                                  dsv41_error* error);
  dsv41_status (*textstream_flush)(dsv41_textstream* stream, const char** text, size_t* size, dsv41_error* error);
  void (*textstream_release)(dsv41_textstream* stream);
  dsv41_status (*chat_render)(dsv41_model* model, const char* request, size_t size, int32_t* buffer, size_t capacity,
                              size_t* n, dsv41_error* error);
  dsv41_status (*chatparse_create)(dsv41_model* model, const dsv41_chatparse_options* options, dsv41_chatparse** out,
                                   dsv41_error* error);
  dsv41_status (*chatparse_push)(dsv41_chatparse* parser, int32_t token, dsv41_error* error);
  dsv41_status (*chatparse_finish)(dsv41_chatparse* parser, dsv41_error* error);
  dsv41_status (*chatparse_next)(dsv41_chatparse* parser, dsv41_chat_event* out, dsv41_error* error);
  dsv41_status (*chatparse_tokens)(dsv41_chatparse* parser, uint32_t part, int32_t* buffer, size_t capacity, size_t* n,
                                   dsv41_error* error);
  void (*chatparse_release)(dsv41_chatparse* parser);
  dsv41_status (*metrics_get)(dsv41_runtime* runtime, dsv41_metrics* out, dsv41_error* error);
  dsv41_status (*metric_list)(const dsv41_metric_desc** out, size_t* n, dsv41_error* error);
  dsv41_status (*metric_value)(dsv41_runtime* runtime, uint32_t metric, uint64_t* out, dsv41_error* error);
  void (*writer_init)(dsv41_writer* writer, size_t size);
  void (*reader_init)(dsv41_reader* reader, size_t size);
  void (*snapshot_options_init)(dsv41_snapshot_options* options, size_t size);
  void (*snapshot_info_init)(dsv41_snapshot_info* info, size_t size);
  void (*verify_report_init)(dsv41_verify_report* report, size_t size);
  void (*compat_report_init)(dsv41_compat_report* report, size_t size);
  void (*restore_options_init)(dsv41_restore_options* options, size_t size);
  void (*restore_info_init)(dsv41_restore_info* info, size_t size);
  dsv41_status (*snapshot_size)(dsv41_session* session, const dsv41_snapshot_options* options, uint64_t* bound,
                                dsv41_error* error);
  dsv41_status (*snapshot_save_file)(dsv41_session* session, const char* path, size_t path_size,
                                     const dsv41_snapshot_options* options, dsv41_snapshot_info* info,
                                     dsv41_error* error);
  dsv41_status (*snapshot_save_buffer)(dsv41_session* session, const dsv41_snapshot_options* options, void* buffer,
                                       size_t capacity, size_t* n, dsv41_error* error);
  dsv41_status (*snapshot_save_io)(dsv41_session* session, const dsv41_writer* writer,
                                   const dsv41_snapshot_options* options, dsv41_snapshot_info* info,
                                   dsv41_error* error);
  dsv41_status (*snapshot_open_file)(dsv41_runtime* runtime, const char* path, size_t path_size, dsv41_snapshot** out,
                                     dsv41_error* error);
  dsv41_status (*snapshot_open_buffer)(dsv41_runtime* runtime, const void* bytes, size_t size, dsv41_snapshot** out,
                                       dsv41_error* error);
  dsv41_status (*snapshot_open_io)(dsv41_runtime* runtime, const dsv41_reader* reader, dsv41_snapshot** out,
                                   dsv41_error* error);
  dsv41_status (*snapshot_info_get)(dsv41_snapshot* snapshot, dsv41_snapshot_info* out, dsv41_error* error);
  dsv41_status (*snapshot_verify)(dsv41_snapshot* snapshot, uint32_t level, dsv41_verify_report* report,
                                  dsv41_error* error);
  dsv41_status (*snapshot_tokens)(dsv41_snapshot* snapshot, int32_t* buffer, size_t capacity, size_t* n,
                                  dsv41_error* error);
  dsv41_status (*snapshot_host_ids)(dsv41_snapshot* snapshot, uint32_t* buffer, size_t capacity, size_t* n,
                                    dsv41_error* error);
  dsv41_status (*snapshot_host_section)(dsv41_snapshot* snapshot, uint32_t id, void* buffer, size_t capacity, size_t* n,
                                        dsv41_error* error);
  dsv41_status (*snapshot_sampler)(dsv41_snapshot* snapshot, dsv41_model* model, dsv41_sampler** out,
                                   dsv41_error* error);
  dsv41_status (*snapshot_compatible)(dsv41_snapshot* snapshot, dsv41_model* model, dsv41_compat_report* report,
                                      dsv41_error* error);
  dsv41_status (*snapshot_restore)(dsv41_snapshot* snapshot, dsv41_pool* pool, const dsv41_restore_options* options,
                                   dsv41_session** out, dsv41_restore_info* info, dsv41_replay_info* replay,
                                   dsv41_error* error);
  dsv41_status (*snapshot_restore_into)(dsv41_snapshot* snapshot, dsv41_session* session,
                                        const dsv41_restore_options* options, dsv41_restore_info* info,
                                        dsv41_replay_info* replay, dsv41_error* error);
  dsv41_status (*snapshot_rewrite)(dsv41_snapshot* snapshot, const dsv41_writer* writer,
                                   const dsv41_snapshot_options* options, uint32_t unwanted_parts, dsv41_error* error);
  void (*snapshot_release)(dsv41_snapshot* snapshot);
  void (*object_store_init)(dsv41_object_store* objects, size_t size);
  void (*store_options_init)(dsv41_store_options* options, size_t size);
  void (*attach_options_init)(dsv41_attach_options* options, size_t size);
  void (*lookup_options_init)(dsv41_lookup_options* options, size_t size);
  void (*match_info_init)(dsv41_match_info* info, size_t size);
  void (*put_options_init)(dsv41_put_options* options, size_t size);
  void (*put_result_init)(dsv41_put_result* result, size_t size);
  void (*store_entry_init)(dsv41_store_entry* entry, size_t size);
  void (*gc_report_init)(dsv41_gc_report* report, size_t size);
  void (*store_verify_report_init)(dsv41_store_verify_report* report, size_t size);
  void (*store_stats_init)(dsv41_store_stats* stats, size_t size);
  dsv41_status (*store_open)(dsv41_runtime* runtime, const dsv41_store_options* options, dsv41_store** out,
                             dsv41_error* error);
  dsv41_status (*pool_attach_store)(dsv41_pool* pool, dsv41_store* store, const dsv41_attach_options* options,
                                    dsv41_error* error);
  dsv41_status (*store_lookup)(dsv41_store* store, dsv41_model* model, const dsv41_input* input,
                               const dsv41_lookup_options* options, dsv41_match** out, dsv41_error* error);
  dsv41_status (*match_info_get)(dsv41_match* match, dsv41_match_info* out, dsv41_error* error);
  dsv41_status (*match_tokens)(dsv41_match* match, int32_t* buffer, size_t capacity, size_t* n, dsv41_error* error);
  dsv41_status (*match_replay_plan)(dsv41_match* match, const dsv41_input* full, const dsv41_replay_options* options,
                                    dsv41_replay_plan* out, dsv41_error* error);
  dsv41_status (*match_state)(dsv41_match* match, dsv41_snapshot** out, dsv41_error* error);
  void (*match_release)(dsv41_match* match);
  dsv41_status (*store_restore)(dsv41_store* store, dsv41_match* match, dsv41_pool* pool,
                                const dsv41_restore_options* options, dsv41_session** out, dsv41_restore_info* info,
                                dsv41_replay_info* replay, dsv41_error* error);
  dsv41_status (*store_put)(dsv41_store* store, dsv41_session* session, const dsv41_put_options* options,
                            dsv41_put_result* result, dsv41_error* error);
  dsv41_status (*store_pin)(dsv41_store* store, const uint8_t key[16], const char* reason, size_t reason_size,
                            dsv41_error* error);
  dsv41_status (*store_unpin)(dsv41_store* store, const uint8_t key[16], dsv41_error* error);
  dsv41_status (*store_remove)(dsv41_store* store, const uint8_t key[16], dsv41_error* error);
  dsv41_status (*store_gc)(dsv41_store* store, uint64_t target_bytes, dsv41_cancel* cancel, dsv41_gc_report* report,
                           dsv41_error* error);
  dsv41_status (*store_flush)(dsv41_store* store, dsv41_cancel* cancel, dsv41_error* error);
  dsv41_status (*store_iter_create)(dsv41_store* store, dsv41_store_iter** out, dsv41_error* error);
  dsv41_status (*store_iter_next)(dsv41_store_iter* iter, dsv41_store_entry* out, dsv41_error* error);
  void (*store_iter_release)(dsv41_store_iter* iter);
  dsv41_status (*store_verify)(dsv41_store* store, uint32_t deep, dsv41_cancel* cancel,
                               dsv41_store_verify_report* report, dsv41_error* error);
  dsv41_status (*store_stats_get)(dsv41_store* store, dsv41_store_stats* out, dsv41_error* error);
  dsv41_status (*store_refresh)(dsv41_store* store, dsv41_error* error);
  void (*store_release)(dsv41_store* store);
} dsv41_api;

/* The table (static) for a host that was compiled against abi_version (DSV41_HEADER_ABI); NULL when this library is
 * older than that or no longer serves it. Any thread, callback-safe. Since 0.1. */
DSV41_API const dsv41_api* dsv41_get_api(uint32_t abi_version);

#ifdef __cplusplus
}
#endif

#endif /* DSV41_DSV41_H */
