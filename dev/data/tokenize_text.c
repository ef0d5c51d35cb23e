// Converts documents to token shards in llm.c's format, with GPT-2's byte-pair encoding.
//
//     tokenize_text TOKENIZER train.bin val.bin INPUT...          two shards; the last tenth of the tokens validates
//     tokenize_text TOKENIZER --shards NAME INPUT...              NAME_val_000000.bin, NAME_train_000001.bin, ...
//     tokenize_text TOKENIZER --save-tokenizer gpt2_tokenizer.bin
//
//     --tokens N      of a shard; default 100000000, as llm.c's fineweb.py. Of the last one: what is left.
//     --field NAME    the text in a line of JSONL; default text
//
// TOKENIZER: gpt2_tokenizer.bin of llm.c, tiktoken's r50k_base.tiktoken; or bytes: a token is a byte. INPUT: a text; a
// JSONL file, each line of which is a document; or a folder of them (documents.h). <|endoftext|> (bytes: a line break)
// stands before each document. All threads of OpenMP encode (OMP_NUM_THREADS).
//
// With --shards a run that was killed goes on when the same command is given again, and all files come to the same
// bytes. Shard k has the tokens from k * N on. After it is on the disk, NAME_shards.txt says from which part of the
// documents, and which token in it, the next one begins:
//
//     encode parts in parallel -> tokens, in order -> N and one more? -> shard k -> rename -> NAME_shards.txt -> rename
//
// A kill between the last two only makes shard k once more. Other texts or settings than those of NAME_shards.txt are
// refused, and so are shards that are missing, have another length, or come after shard k: nothing else is overwritten.
// The directory is locked, so there is one writer.
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include "data/bpe.h"
#include "data/documents.h"
#include "data/durable_file.h"
#include "data/llmc_file.h"

#define FAIL(...) (snprintf(err, sizeof err, __VA_ARGS__), -1)

static char err[5120];

typedef struct {
    const char *tokenizer, *name, *save, *field;
    char *train, *val;  // without --shards
    size_t shard_tokens;
} Arguments;

typedef struct {
    const Arguments *arguments;
    char temporary[4200], manifest[4200];
    uint64_t hash;      // of documents and settings
    Tokens tokens;      // that are in no shard yet
    size_t shards;      // on the disk
    size_t written;     // tokens in them
    size_t part, used;  // where the next one begins: tokens of this part that are in earlier ones
} Output;

// ---- files ----------------------------------------------------------------------------------------------------------

static int write_shard(const char *temporary, const char *path, const uint16_t *tokens, size_t n) {
    int fd;
    if (n > INT32_MAX) return FAIL("%.300s: %zu tokens; at most %d fit into a shard: use --shards", path, n, INT32_MAX);
    const int32_t header[LLMC_HEADER_WORDS] = { 20240520, 1, (int32_t)n };
    if (durable_create(temporary, LLMC_HEADER_BYTES + 2 * n, &fd, err, sizeof err) != 0) return -1;
    int status = durable_write(fd, temporary, header, sizeof header, 0, err, sizeof err);
    if (status == 0) status = durable_write(fd, temporary, tokens, 2 * n, LLMC_HEADER_BYTES, err, sizeof err);
    if (status != 0) {
        close(fd);
        unlink(temporary);
        return -1;
    }
    if (durable_close(fd, temporary, err, sizeof err) != 0) return -1;
    return durable_publish(temporary, path, err, sizeof err);
}

// Each under a temporary name of this process's.
static int write_pair(const Arguments *a, const Tokens *t) {
    const size_t train = t->count / 10 * 9 + t->count % 10 * 9 / 10;
    char temporary[4200];
    snprintf(temporary, sizeof temporary, "%.4000s.%ld.tmp", a->train, (long)getpid());
    if (write_shard(temporary, a->train, t->tokens, train) != 0) return -1;
    snprintf(temporary, sizeof temporary, "%.4000s.%ld.tmp", a->val, (long)getpid());
    if (write_shard(temporary, a->val, t->tokens + train, t->count - train) != 0) return -1;
    printf("%zu tokens: %zu in %s, %zu in %s\n", t->count, train, a->train, t->count - train, a->val);
    return 0;
}

static void shard_path(const Arguments *a, size_t k, char path[4200]) {
    snprintf(path, 4200, "%.4000s_%s_%06zu.bin", a->name, k == 0 ? "val" : "train", k);
}

// The number is raised when the places of parts change (bpe_cut).
enum { MANIFEST_VERSION = 2, MANIFEST_BYTES = 256 };

static void print_manifest(const Output *o, char text[MANIFEST_BYTES]) {
    snprintf(text, MANIFEST_BYTES,
             "tokenize_text %d of %016llx\nshards %zu\ntokens %zu\nnext_part %zu\nnext_token %zu\n", MANIFEST_VERSION,
             (unsigned long long)o->hash, o->shards, o->written, o->part, o->used);
}

static int write_manifest(const Output *o) {
    char text[MANIFEST_BYTES];
    print_manifest(o, text);
    return durable_write_text(o->temporary, o->manifest, text, err, sizeof err);
}

// Writes the first n tokens as the next shard. Those that remain are all of this part, the last `of_part` of it.
static int next_shard(Output *o, size_t n, size_t part, size_t of_part) {
    char path[4200];
    shard_path(o->arguments, o->shards, path);
    if (write_shard(o->temporary, path, o->tokens.tokens, n) != 0) return -1;
    o->tokens.count -= n;
    memmove(o->tokens.tokens, o->tokens.tokens + n, o->tokens.count * sizeof *o->tokens.tokens);
    o->shards++;
    o->written += n;
    o->part = part;
    o->used = of_part - o->tokens.count;
    printf("%s: %zu tokens\n", path, n);
    fflush(stdout);
    return write_manifest(o);
}

// Takes the tokens of the next part. One more than a shard has shows that there will be another.
static int take(Output *o, size_t part, const Tokens *t) {
    const size_t skip = part == o->part ? o->used : 0;
    if (skip > t->count) return FAIL("%s: is damaged: remove it and the shards", o->manifest);
    for (size_t i = skip; i < t->count; i++) {
        const int token = t->tokens[i];
        if (tokens_append(&o->tokens, &token, 1) != 0) return FAIL("memory is exhausted: use a smaller --tokens");
    }
    while (o->arguments->name != NULL && o->tokens.count > o->arguments->shard_tokens)
        if (next_shard(o, o->arguments->shard_tokens, part, t->count) != 0) return -1;
    return 0;
}

// ---- resuming -------------------------------------------------------------------------------------------------------

static int hash_run(Output *o, const Documents *d, const Tokenizer *t) {
    uint64_t documents;
    if (documents_hash(d, &documents, err) != 0) return -1;
    XXH3_state_t *state = XXH3_createState();
    if (state == NULL || XXH3_64bits_reset(state) != XXH_OK) return FAIL("out of memory");
    const size_t numbers[] = { documents, documents_files(d), documents_parts(d), o->arguments->shard_tokens,
                               (size_t)tokenizer_eot(t) };
    XXH3_64bits_update(state, numbers, sizeof numbers);
    XXH3_64bits_update(state, o->arguments->field, strlen(o->arguments->field));
    for (int i = 0; i < tokenizer_vocab(t); i++) {
        size_t n;
        const unsigned char *bytes = tokenizer_bytes(t, i, &n);
        XXH3_64bits_update(state, &n, sizeof n);
        XXH3_64bits_update(state, bytes, n);
    }
    o->hash = XXH3_64bits_digest(state);
    XXH3_freeState(state);
    return 0;
}

// What follows the directory in a path.
static const char *base_of(const char *path) {
    const char *slash = strrchr(path, '/');
    return slash != NULL ? slash + 1 : path;
}

static void directory_of(const char *name, char path[4200]) {
    const int length = (int)(base_of(name) - name);
    snprintf(path, 4200, "%.*s", length > 0 ? length : 1, length > 0 ? name : ".");
}

// Keeps other runs out of the directory until this process ends. On file systems without such locks it does nothing.
static int lock_directory(const char *name) {
    char path[4200];
    if (*base_of(name) == '\0') return FAIL("--shards \"%.300s\": is not a name: give one, such as data/web", name);
    directory_of(name, path);
    const int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd == -1) return FAIL("--shards %.300s: %s: %s: make this directory first", name, path, strerror(errno));
    if (flock(fd, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK)
        return FAIL("--shards %.300s: another tokenize_text writes into %s: wait for it, or choose another directory",
                    name, path);
    return 0;
}

// Reads NAME_shards.txt. Returns 1; 0: there is none; -1 and a message.
static int read_manifest(Output *o) {
    char text[MANIFEST_BYTES] = "", same[MANIFEST_BYTES];
    unsigned long long hash;
    FILE *f = fopen(o->manifest, "r");
    if (f == NULL && errno == ENOENT) return 0;
    if (f == NULL) return FAIL("%s: cannot be read: %s", o->manifest, strerror(errno));
    text[fread(text, 1, sizeof text - 1, f)] = '\0';
    fclose(f);
    const int fields = sscanf(text,
                              "tokenize_text %*d of %llx\nshards %zu\ntokens %zu\nnext_part %zu\nnext_token %zu\n",
                              &hash, &o->shards, &o->written, &o->part, &o->used);
    o->hash = hash;
    print_manifest(o, same);
    if (fields == 5 && strcmp(text, same) == 0) return 1;
    return FAIL("%s: is damaged, or of another version: remove it and the shards", o->manifest);
}

// Are the shards of the manifest there, as long as they were?
static int check_shards(const Output *o) {
    char path[4200];
    for (size_t k = 0; k < o->shards; k++) {
        const size_t n = k + 1 < o->shards ? o->arguments->shard_tokens : o->written - k * o->arguments->shard_tokens;
        struct stat st;
        shard_path(o->arguments, k, path);
        if (stat(path, &st) != 0)
            return FAIL("%.2000s: %s: bring it back; or, to begin again, remove %.2000s and all shards", path,
                        strerror(errno), o->manifest);
        if ((size_t)st.st_size != LLMC_HEADER_BYTES + 2 * n)
            return FAIL("%.2000s: has %zu bytes instead of %zu: bring it back; or, to begin again, remove %.2000s "
                        "and all shards",
                        path, (size_t)st.st_size, LLMC_HEADER_BYTES + 2 * n, o->manifest);
    }
    return 0;
}

// Refuses shards from `first` on: the manifest does not list them.
static int check_others(const Output *o, size_t first) {
    const char *base = base_of(o->arguments->name);
    char path[4200];
    directory_of(o->arguments->name, path);
    DIR *dir = opendir(path);
    if (dir == NULL) return FAIL("%s: cannot be listed: %s", path, strerror(errno));
    int status = 0;
    for (const struct dirent *e; status == 0 && (e = readdir(dir)) != NULL;) {
        size_t k;
        if (strncmp(e->d_name, base, strlen(base)) != 0 || sscanf(e->d_name + strlen(base), "_%*[a-z]_%zu", &k) != 1)
            continue;
        shard_path(o->arguments, k, path);
        if (k >= first && strcmp(base_of(path), e->d_name) == 0)
            status = FAIL(
                "%.2000s: is there, and not of this program (%.2000s does not list it): choose another name, or "
                "remove it",
                path, o->manifest);
    }
    closedir(dir);
    return status;
}

// Finds out where the run goes on.
static int resume(Output *o, const Documents *d, const Tokenizer *t) {
    const char *name = o->arguments->name;
    snprintf(o->temporary, sizeof o->temporary, "%.4000s_partial.tmp", name);
    snprintf(o->manifest, sizeof o->manifest, "%.4000s_shards.txt", name);
    if (lock_directory(name) != 0 || hash_run(o, d, t) != 0) return -1;
    unlink(o->temporary);  // of a run that was killed: the directory is locked
    const uint64_t hash = o->hash;
    const int found = read_manifest(o), same = hash == o->hash;
    o->hash = hash;
    // Shard o->shards may be there: the run was killed before it was noted.
    if (found < 0 || check_others(o, found ? o->shards + 1 : 0) != 0) return -1;
    if (!found || (!same && o->shards == 0)) return write_manifest(o);  // nothing is lost
    if (!same)
        return FAIL("%s: these shards are of other texts, or made with another tokenizer, --tokens or --field: choose "
                    "another name, or remove them",
                    o->manifest);
    if (o->part > documents_parts(d)) return FAIL("%s: is damaged: remove it and the shards", o->manifest);
    if (check_shards(o) != 0) return -1;
    if (o->shards > 0) printf("%s: has %zu shards; the run goes on\n", name, o->shards);
    return 0;
}

// ---- the run --------------------------------------------------------------------------------------------------------

static int encode_all(Output *o, const Documents *d, const Bpe *bpe, int eot) {
    const size_t first = o->part, parts = documents_parts(d);  // take changes o->part
    int failed = 0;
#pragma omp parallel for ordered schedule(dynamic, 1)
    for (size_t part = first; part < parts; part++) {
        Tokens t = { 0 };
        char message[512];
        int stop;
#pragma omp atomic read
        stop = failed;
        const int status = stop ? -1 : documents_encode(d, part, bpe, eot, &t, message);
#pragma omp ordered
        if (!failed) {
            if (status != 0) (void)FAIL("%s", message);
            if (status != 0 || take(o, part, &t) != 0) {
#pragma omp atomic write
                failed = 1;
            }
        }
        free(t.tokens);
    }
    return failed ? -1 : 0;
}

// What is left is the last shard. input: the first one, for messages.
static int finish(Output *o, const Documents *d, const char *input, int eot) {
    const Arguments *a = o->arguments;
    const size_t parts = documents_parts(d);
    size_t empty = 0;  // end-of-text tokens before the first text
    while (empty < o->tokens.count && o->tokens.tokens[empty] == eot) empty++;
    if (a->name != NULL && o->shards == 0) unlink(o->manifest);
    if (o->shards == 0 && empty == o->tokens.count) return FAIL("%.300s: is empty: give a file with text", input);
    if (a->name == NULL) return write_pair(a, &o->tokens);
    if (o->shards == 0)
        return FAIL("--shards %.300s: the first shard validates, and all %zu tokens fit into it: use --tokens %zu or "
                    "less",
                    a->name, o->tokens.count, o->tokens.count / 10 + 1);
    if (o->tokens.count > 0 && next_shard(o, o->tokens.count, parts, 0) != 0) return -1;
    printf("files: %zu, shards: %zu: %s_val_000000.bin, %s_train_*.bin\n", documents_files(d), o->shards, a->name,
           a->name);
    return 0;
}

static int convert(const Arguments *a, char **inputs, size_t n, const Tokenizer *t) {
    Output o = { .arguments = a };
    Documents *d = NULL;
    Bpe *bpe = NULL;
    char first[4200] = "";
    char *const pair[] = { a->train, a->val }, *const shards[] = { first };
    if (a->name != NULL) shard_path(a, 0, first);
    if (tokenizer_vocab(t) > UINT16_MAX + 1) return FAIL("the vocabulary has more than 65536 tokens");
    int status = documents_open(&d, inputs, n, a->field, a->name ? shards : pair, a->name ? 1 : 2, err);
    if (status == 0) status = bpe_open(&bpe, t, err);
    if (status == 0 && a->name != NULL) status = resume(&o, d, t);
    if (status == 0) status = encode_all(&o, d, bpe, tokenizer_eot(t));
    if (status == 0) status = finish(&o, d, inputs[0], tokenizer_eot(t));
    free(o.tokens.tokens);
    bpe_close(bpe);
    documents_close(d);
    return status;
}

// ---- the command line -----------------------------------------------------------------------------------------------

// May this file be made, or replaced?
static int check_output(const char *path) {
    struct stat st;
    if (lstat(path, &st) != 0 || S_ISREG(st.st_mode) || S_ISLNK(st.st_mode)) return 0;
    return FAIL("%.300s: is %s: choose another name", path, llmc_kind_of_file(st.st_mode));
}

static int check_pair(const Arguments *a) {
    struct stat s, t;
    if (check_output(a->train) != 0 || check_output(a->val) != 0) return -1;
    const int same = stat(a->train, &s) == 0 && stat(a->val, &t) == 0 && s.st_dev == t.st_dev && s.st_ino == t.st_ino;
    if (!same && strcmp(a->train, a->val) != 0) return 0;
    return FAIL("%.300s and %.300s are the same file: choose another name", a->train, a->val);
}

// Returns how many words are not flags (these are then the last ones of argv); 0: they make no sense.
static int parse(Arguments *a, int argc, char **argv) {
    static const struct option FLAGS[] = { { "shards", 1, NULL, 's' },
                                           { "tokens", 1, NULL, 't' },
                                           { "field", 1, NULL, 'f' },
                                           { "save-tokenizer", 1, NULL, 'o' },
                                           { 0 } };
    char *end = NULL;
    optind = 0;  // glibc: start again
    for (int flag; (flag = getopt_long(argc, argv, "", FLAGS, NULL)) != -1;) {
        if (flag == 's') a->name = optarg;
        if (flag == 't') a->shard_tokens = strtoull(optarg, &end, 10);
        if (flag == 'f') a->field = optarg;
        if (flag == 'o') a->save = optarg;
        if (flag == '?') return 0;
    }
    const int words = argc - optind, tokens_given = end != NULL;
    if (tokens_given && (*end != '\0' || a->name == NULL || a->shard_tokens < 1 || a->shard_tokens > INT32_MAX))
        return 0;
    if (a->save != NULL ? words != 1 || a->name != NULL : words < (a->name != NULL ? 2 : 4)) return 0;
    a->tokenizer = argv[optind];
    a->train = argv[optind + 1];
    a->val = words > 2 ? argv[optind + 2] : NULL;
    return words;
}

int main(int argc, char **argv) {
    Arguments a = { .field = "text", .shard_tokens = 100000000 };
    Tokenizer *t = NULL;
    const int words = parse(&a, argc, argv);
    if (words == 0) {
        fprintf(stderr,
                "usage: %s TOKENIZER train.bin val.bin [--field NAME] INPUT...\n"
                "       %s TOKENIZER --shards NAME [--tokens N] [--field NAME] INPUT...\n"
                "       %s TOKENIZER --save-tokenizer gpt2_tokenizer.bin\n"
                "TOKENIZER: gpt2_tokenizer.bin, r50k_base.tiktoken or bytes. INPUT: text, JSONL, or folders of them.\n"
                "N: from 1 to %d tokens of a shard; the first one validates [100000000].\n"
                "NAME of --field: the text in a line of JSONL [text].\n",
                argv[0], argv[0], argv[0], INT32_MAX);
        return 2;
    }
    const int inputs = words - (a.name != NULL ? 1 : 3);
    int status = a.save == NULL && a.name == NULL ? check_pair(&a) : 0;
    if (status == 0) status = tokenizer_open(&t, strcmp(a.tokenizer, "bytes") != 0 ? a.tokenizer : NULL, err);
    if (status == 0)
        status = a.save != NULL ? tokenizer_save(t, a.save, err) : convert(&a, argv + argc - inputs, (size_t)inputs, t);
    if (status != 0) fprintf(stderr, "error: %s\n", err);
    tokenizer_close(t);
    return status != 0;
}
