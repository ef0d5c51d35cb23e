// A file has a part for each 256 KB, and one for the rest. Part i begins at the first place at or after byte i * 256 KB
// where it may: in JSONL at a line, in text where the tokens do not change by the cut (bpe_cut). It ends where the next
// one begins, and is empty if there is no such place in its 256 KB. So any thread finds any part on its own, and the
// parts depend on the files alone, not on the number of threads.
#include "data/documents.h"

#include <cjson/cJSON.h>
#include <errno.h>
#include <fts.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "data/content_hash.h"
#include "data/llmc_file.h"

#define FAIL(...) (snprintf(err, 512, __VA_ARGS__), -1)

enum { PART = 1 << 18 };

typedef struct {
    char *path;
    size_t bytes, first_part;
    dev_t device;
    ino_t inode;
} File;

struct Documents {
    File *files;
    size_t count, room, parts;
    const char *field;
};

int tokens_append(Tokens *t, const int *tokens, size_t n) {
    if (t->count + n > t->room) {
        const size_t room = 2 * (t->count + n);
        uint16_t *more = realloc(t->tokens, room * sizeof *more);
        if (more == NULL) return -1;
        t->tokens = more;
        t->room = room;
    }
    for (size_t i = 0; i < n; i++) t->tokens[t->count++] = (uint16_t)tokens[i];
    return 0;
}

// ---- finding files --------------------------------------------------------------------------------------------------

static int add_file(Documents *d, const char *path, const struct stat *st) {
    if (d->count == d->room) {
        const size_t room = d->room > 0 ? 2 * d->room : 64;
        File *more = realloc(d->files, room * sizeof *more);
        if (more == NULL) return -1;
        d->files = more;
        d->room = room;
    }
    char *copy = strdup(path);
    if (copy == NULL) return -1;
    d->files[d->count++] = (File){ copy, (size_t)st->st_size, d->parts, st->st_dev, st->st_ino };
    d->parts += (size_t)st->st_size / PART + 1;
    return 0;
}

// Is this file an output, or this folder that of one? Then returns it, else NULL.
static const char *find_output(const struct stat *st, int is_folder, char *const *outputs, size_t n) {
    for (size_t i = 0; i < n; i++) {
        char path[4096];
        const char *slash = strrchr(outputs[i], '/');
        struct stat of_output;
        if (is_folder)
            snprintf(path, sizeof path, "%.*s", slash ? (int)(slash - outputs[i] + 1) : 1, slash ? outputs[i] : ".");
        else
            snprintf(path, sizeof path, "%s", outputs[i]);
        if (stat(path, &of_output) == 0 && of_output.st_dev == st->st_dev && of_output.st_ino == st->st_ino)
            return outputs[i];
    }
    return NULL;
}

static int by_name(const FTSENT **a, const FTSENT **b) { return strcmp((*a)->fts_name, (*b)->fts_name); }

static int add_entry(Documents *d, FTS *fts, FTSENT *e, char *const *outputs, size_t n, char err[512]) {
    const int is_folder = e->fts_info == FTS_D;
    if (e->fts_info == FTS_DP) return 0;  // a folder, for the second time
    if (e->fts_level > 0 && e->fts_name[0] == '.') {
        fts_set(fts, e, FTS_SKIP);
        return 0;
    }
    if (e->fts_info == FTS_DEFAULT)
        return FAIL("%.300s: is %s, not a regular file: give the names of files and folders", e->fts_path,
                    llmc_kind_of_file(e->fts_statp->st_mode));
    if (!is_folder && e->fts_info != FTS_F)
        return FAIL("%.300s: cannot be opened: %s: check the name and its permissions", e->fts_path,
                    strerror(e->fts_info == FTS_DC || e->fts_errno == 0 ? ELOOP : e->fts_errno));
    const char *output = find_output(e->fts_statp, is_folder, outputs, n);
    if (output != NULL)
        return FAIL("%.200s: %s this output: choose another name", output,
                    is_folder ? "a folder of texts would hold" : "one of the texts is");
    if (is_folder) return 0;
    return add_file(d, e->fts_path, e->fts_statp) == 0 ? 0 : FAIL("out of memory for %zu files", d->count);
}

int documents_open(Documents **out, char *const *inputs, size_t n, const char *field, char *const *outputs,
                   size_t num_outputs, char err[512]) {
    Documents *d = *out = calloc(1, sizeof *d);
    if (d == NULL) return FAIL("out of memory");
    d->field = field;
    int status = 0;
    for (size_t i = 0; i < n && status == 0; i++) {
        char *const roots[] = { inputs[i], NULL };
        FTS *fts = fts_open(roots, FTS_LOGICAL | FTS_NOCHDIR, by_name);
        if (fts == NULL) status = FAIL("%.300s: cannot be listed: %s", inputs[i], strerror(errno));
        for (FTSENT *e = NULL; status == 0;) {
            errno = 0;
            if ((e = fts_read(fts)) == NULL) {
                if (errno != 0) status = FAIL("%.300s: cannot be listed: %s", inputs[i], strerror(errno));
                break;
            }
            status = add_entry(d, fts, e, outputs, num_outputs, err);
        }
        if (fts != NULL) fts_close(fts);
    }
    if (status == 0 && d->count == 0) status = FAIL("%.300s: has no files: give a folder of texts", inputs[0]);
    if (status == 0) return 0;
    documents_close(d);
    *out = NULL;
    return -1;
}

void documents_close(Documents *d) {
    if (d == NULL) return;
    for (size_t i = 0; i < d->count; i++) free(d->files[i].path);
    free(d->files);
    free(d);
}

size_t documents_files(const Documents *d) { return d->count; }
size_t documents_parts(const Documents *d) { return d->parts; }

int documents_hash(const Documents *d, uint64_t *hash, char err[512]) {
    char **paths = malloc(d->count * sizeof *paths);
    if (paths == NULL) return FAIL("out of memory for %zu files", d->count);
    for (size_t i = 0; i < d->count; i++) paths[i] = d->files[i].path;
    const int status = content_hash(paths, d->count, hash, err, 512);
    free(paths);
    return status;
}

// ---- encoding -------------------------------------------------------------------------------------------------------

static const char NO_FIELD[] = "has no text in its field", MEMORY[] = "memory is exhausted";

static int encode_text(const Bpe *bpe, const char *text, size_t bytes, Tokens *out) {
    int *tokens = malloc((bytes + 1) * sizeof *tokens);
    const size_t n = tokens != NULL ? bpe_encode(bpe, text, bytes, tokens) : SIZE_MAX;
    const int status = n != SIZE_MAX ? tokens_append(out, tokens, n) : -1;
    free(tokens);
    return status;
}

static int is_blank(const char *text, size_t bytes) {
    while (bytes > 0 && strchr(" \t\r\n", text[bytes - 1]) != NULL && text[bytes - 1] != '\0') bytes--;
    return bytes == 0;
}

// cJSON ends a string at a \u0000: six bytes that are not UTF-8 stand for it.
#define NUL_MARK "\xff\xff\xff\xff\xff\xff"

// Marks the \u0000 of a line. Returns how many.
static size_t mark_nul(char *line, size_t bytes) {
    size_t marked = 0;
    for (char *at = line; (at = memmem(at, bytes - (size_t)(at - line), "\\u0000", 6)) != NULL; at += 6) {
        const char *first = at;
        while (first > line && first[-1] == '\\') first--;
        if ((at - first) % 2 != 0) continue;
        memcpy(at, NUL_MARK, 6);
        marked++;
    }
    return marked;
}

// Appends the document in a line of JSONL. Returns NULL, or what is wrong.
static const char *encode_line(const char *field, char *line, size_t bytes, const Bpe *bpe, int eot, Tokens *out) {
    const size_t marked = mark_nul(line, bytes);
    const char *wrong = NULL, *rest = NULL;
    cJSON *json = cJSON_ParseWithLengthOpts(line, bytes, &rest, 0);
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(json, field);
    if (json == NULL || !is_blank(rest, (size_t)(line + bytes - rest)))
        wrong = "is not JSON: correct or remove it";
    else if (!cJSON_IsString(item))
        wrong = NO_FIELD;
    else if (marked > 0 && strstr(item->valuestring, NUL_MARK) != NULL)
        wrong = "has a NUL character (\\u0000): remove it";
    else if (tokens_append(out, &eot, 1) != 0 ||
             encode_text(bpe, item->valuestring, strlen(item->valuestring), out) != 0)
        wrong = MEMORY;
    cJSON_Delete(json);
    return wrong;
}

// Lines [at, end) of a JSONL file, a document each.
static int encode_lines(const Documents *d, const File *f, const char *text, size_t at, size_t end, const Bpe *bpe,
                        int eot, Tokens *out, char err[512]) {
    for (size_t next; at < end; at = next) {
        const char *newline = memchr(text + at, '\n', end - at);
        next = newline != NULL ? (size_t)(newline - text) + 1 : end;
        const size_t bytes = next - at;
        if (is_blank(text + at, bytes)) continue;
        char *copy = malloc(bytes);
        if (copy != NULL) memcpy(copy, text + at, bytes);
        const char *wrong = copy != NULL ? encode_line(d->field, copy, bytes, bpe, eot, out) : MEMORY;
        free(copy);
        if (wrong == NULL) continue;
        size_t line = 1;
        for (size_t i = 0; i < at; i++) line += text[i] == '\n';
        if (wrong == NO_FIELD)
            return FAIL("%.200s, line %zu: %s %.50s: name another one with --field", f->path, line, wrong, d->field);
        return FAIL("%.200s, line %zu: %s", f->path, line, wrong);
    }
    return 0;
}

static int is_jsonl(const char *path) {
    const char *dot = strrchr(path, '.');
    return dot != NULL && (strcmp(dot, ".jsonl") == 0 || strcmp(dot, ".ndjson") == 0);
}

// The first place in [from, limit) where a part may begin; limit if there is none. from > 0.
static size_t find_cut(int jsonl, const char *text, size_t from, size_t limit) {
    if (!jsonl) return bpe_cut(text, limit, from);
    const char *newline = memchr(text + from - 1, '\n', limit - (from - 1));
    return newline != NULL ? (size_t)(newline - text) + 1 : limit;
}

// Part i of a file. text: all of it.
static int encode_part(const Documents *d, const File *f, size_t i, const char *text, const Bpe *bpe, int eot,
                       Tokens *out, char err[512]) {
    const int jsonl = is_jsonl(f->path), last = f->bytes - i * PART < PART;
    const size_t limit = last ? f->bytes : (i + 1) * PART;
    const size_t begin = i == 0 ? 0 : find_cut(jsonl, text, i * PART, limit);
    if (i > 0 && begin == limit) return 0;
    const size_t end = last ? limit : find_cut(jsonl, text, limit, f->bytes);
    const char *nul = end > begin ? memchr(text + begin, '\0', end - begin) : NULL;
    if (nul != NULL)
        return FAIL("%.200s: is not text, for it has a NUL byte at %zu: decompress or convert it (text in UTF-16: "
                    "iconv -f UTF-16 -t UTF-8), or leave it out",
                    f->path, (size_t)(nul - text));
    if (jsonl) return encode_lines(d, f, text, begin, end, bpe, eot, out, err);
    if ((i == 0 && tokens_append(out, &eot, 1) != 0) || encode_text(bpe, text + begin, end - begin, out) != 0)
        return FAIL("%.200s: memory is exhausted", f->path);
    return 0;
}

int documents_encode(const Documents *d, size_t part, const Bpe *bpe, int eot, Tokens *out, char err[512]) {
    size_t low = 0, high = d->count;
    while (high - low > 1) {  // the file of this part is in [low, high)
        const size_t middle = low + (high - low) / 2;
        if (d->files[middle].first_part <= part)
            low = middle;
        else
            high = middle;
    }
    const File *f = &d->files[low];
    struct stat st;
    const int fd = llmc_open(f->path, err, 512);
    if (fd < 0) return -1;
    const int same = fstat(fd, &st) == 0 && (size_t)st.st_size == f->bytes;
    void *text = f->bytes > 0 && same ? mmap(NULL, f->bytes, PROT_READ, MAP_PRIVATE, fd, 0) : NULL;
    close(fd);
    if (!same) return FAIL("%.300s: was changed while it was read: start again", f->path);
    if (text == MAP_FAILED) return FAIL("%.300s: cannot be read: %s", f->path, strerror(errno));
    const int status = encode_part(d, f, part - f->first_part, text != NULL ? text : "", bpe, eot, out, err);
    if (text != NULL) munmap(text, f->bytes);
    return status;
}
