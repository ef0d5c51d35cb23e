#include "data/safetensors.h"

#include <cjson/cJSON.h>
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "data/llmc_file.h"

#define MAX_HEADER ((size_t)100000000)  // bytes, as in Hugging Face's own reader
#define PIECE      16384                // elements that are converted at a time

#define FAIL(...) (snprintf(err, err_bytes, __VA_ARGS__), -1)

// ---------------------------------------------------------------------------------------------------------------------
// JSON.

int json_size(const cJSON *number, size_t *out) {
    const double limit = 9007199254740992.0;  // up to here a double is exact
    if (!cJSON_IsNumber(number) || !(number->valuedouble >= 0 && number->valuedouble <= limit)) return 0;
    *out = (size_t)number->valuedouble;
    return (double)*out == number->valuedouble;
}

// Parses an object that is all of the text but white space at its end. NULL: it is not one.
static cJSON *parse_object(const char *text, size_t bytes) {
    const char *end = NULL;
    cJSON *json = cJSON_ParseWithLengthOpts(text, bytes, &end, 0);
    while (json != NULL && end < text + bytes && strchr(" \t\r\n", *end) != NULL && *end != '\0') end++;
    if (cJSON_IsObject(json) && end == text + bytes) return json;
    cJSON_Delete(json);
    return NULL;
}

cJSON *json_read(const char *path, size_t max_bytes, char *err, size_t err_bytes) {
    struct stat st;
    const int fd = llmc_open(path, err, err_bytes);
    if (fd == -1) return NULL;
    char *text = NULL;
    cJSON *json = NULL;
    if (fstat(fd, &st) != 0 || (size_t)st.st_size > max_bytes) {
        snprintf(err, err_bytes, "%s: has more than %zu bytes: is this the right file?", path, max_bytes);
    } else if ((text = malloc((size_t)st.st_size + 1)) == NULL || llmc_read_at(fd, text, (size_t)st.st_size, 0) != 0) {
        snprintf(err, err_bytes, "%s: cannot be read: %s", path, strerror(errno));
    } else if ((json = parse_object(text, (size_t)st.st_size)) == NULL) {
        snprintf(err, err_bytes, "%s: is not a JSON object: it was truncated or is damaged: get it again", path);
    }
    free(text);
    close(fd);
    return json;
}

// ---------------------------------------------------------------------------------------------------------------------
// The header.

static size_t bytes_of(const char *dtype) {
    static const struct {
        const char *name;
        size_t bytes;
    } TYPES[] = { { "F32", 4 }, { "BF16", 2 },    { "F16", 2 },     { "F64", 8 }, { "BOOL", 1 },
                  { "U8", 1 },  { "I8", 1 },      { "U16", 2 },     { "I16", 2 }, { "U32", 4 },
                  { "I32", 4 }, { "F8_E4M3", 1 }, { "F8_E5M2", 1 }, { "U64", 8 }, { "I64", 8 } };
    for (size_t i = 0; i < sizeof TYPES / sizeof *TYPES; i++)
        if (strcmp(dtype, TYPES[i].name) == 0) return TYPES[i].bytes;
    return 0;
}

static int is_printable(const char *text) {
    for (; *text != '\0'; text++)
        if (*text < ' ' || *text > '~') return 0;
    return 1;
}

#define BAD(what, ...) FAIL("%s: tensor %s: " what ": the file is damaged: get it again", s->path, __VA_ARGS__)

// data: bytes of all tensors.
static int parse_tensor(const SafeTensors *s, SafeTensor *t, const cJSON *json, size_t data, char *err,
                        size_t err_bytes) {
    const cJSON *dtype = cJSON_GetObjectItemCaseSensitive(json, "dtype"),
                *shape = cJSON_GetObjectItemCaseSensitive(json, "shape"),
                *offsets = cJSON_GetObjectItemCaseSensitive(json, "data_offsets"), *size;
    size_t bytes, end;
    if (!is_printable(json->string) || strlen(json->string) > 200)
        return FAIL("%s: a tensor has a name of more than 200 characters, or not of ASCII: it is not one of GPT-2",
                    s->path);
    *t = (SafeTensor){ .name = json->string, .numel = 1 };
    if (!cJSON_IsString(dtype) || !cJSON_IsArray(shape) || !cJSON_IsArray(offsets) || cJSON_GetArraySize(offsets) != 2)
        return BAD("has no dtype, shape and data_offsets", t->name);
    t->dtype = dtype->valuestring;
    t->element_bytes = bytes_of(t->dtype);
    if (t->element_bytes == 0)
        return FAIL("%s: tensor %s: has the unknown type %.20s: save it as F32", s->path, t->name,
                    is_printable(t->dtype) ? t->dtype : "?");
    cJSON_ArrayForEach(size, shape) {
        if (t->dims == SAFETENSORS_MAX_DIMS || !json_size(size, &t->shape[t->dims]) ||
            __builtin_mul_overflow(t->numel, t->shape[t->dims], &t->numel))
            return BAD("has an impossible shape", t->name);
        t->dims++;
    }
    if (!json_size(offsets->child, &t->begin) || !json_size(offsets->child->next, &end) || t->begin > end)
        return BAD("has impossible data_offsets", t->name);
    if (end > data) return BAD("ends at byte %zu of the data, of which there are %zu", t->name, end, data);
    if (__builtin_mul_overflow(t->numel, t->element_bytes, &bytes) || bytes != end - t->begin)
        return BAD("has %zu bytes, which its type and shape do not have", t->name, end - t->begin);
    return 0;
}

static int by_name(const void *a, const void *b) {
    return strcmp(((const SafeTensor *)a)->name, ((const SafeTensor *)b)->name);
}

static int by_place(const void *a, const void *b) {
    const SafeTensor *s = a, *t = b;
    if (s->begin != t->begin) return s->begin < t->begin ? -1 : 1;
    return (s->numel > 0) - (t->numel > 0);  // what is empty ends where it begins
}

static int check_tensors(SafeTensors *s, size_t data, char *err, size_t err_bytes) {
    size_t end = 0;
    if (s->count == 0) return FAIL("%s: has no tensors", s->path);
    qsort(s->tensors, s->count, sizeof *s->tensors, by_name);
    for (size_t i = 1; i < s->count; i++)
        if (by_name(&s->tensors[i - 1], &s->tensors[i]) == 0) return BAD("is there twice", s->tensors[i].name);
    qsort(s->tensors, s->count, sizeof *s->tensors, by_place);
    for (size_t i = 0; i < s->count; i++) {
        const SafeTensor *t = &s->tensors[i];
        if (t->begin != end)
            return BAD("begins at byte %zu of the data, the one before ends at %zu", t->name, t->begin, end);
        end += t->numel * t->element_bytes;
    }
    if (end == data) return 0;
    return FAIL("%s: has %zu bytes that are in no tensor: the file is damaged: get it again", s->path, data - end);
}

static int parse(SafeTensors *s, const char *text, size_t bytes, size_t data, char *err, size_t err_bytes) {
    const cJSON *item;
    if (text[0] != '{' || (s->json = parse_object(text, bytes)) == NULL)
        return FAIL("%s: its header is not a JSON object: the file is damaged, or is not safetensors: get it again",
                    s->path);
    s->tensors = calloc((size_t)cJSON_GetArraySize(s->json) + 1, sizeof *s->tensors);
    if (s->tensors == NULL) return FAIL("%s: out of memory", s->path);
    cJSON_ArrayForEach(item, (cJSON *)s->json) {
        if (strcmp(item->string, "__metadata__") == 0) continue;
        if (parse_tensor(s, &s->tensors[s->count++], item, data, err, err_bytes) != 0) return -1;
    }
    if (check_tensors(s, data, err, err_bytes) != 0) return -1;
    for (size_t i = 0; i < s->count; i++) s->tensors[i].begin += 8 + bytes;
    return 0;
}

int safetensors_open(SafeTensors *s, const char *path, char *err, size_t err_bytes) {
    struct stat st;
    uint64_t header;
    memset(s, 0, sizeof *s);
    s->fd = -1;
    if (strlen(path) >= sizeof s->path) return FAIL("%.200s...: the name is too long: choose a shorter one", path);
    strcpy(s->path, path);
    if ((s->fd = llmc_open(path, err, err_bytes)) == -1) return -1;
    if (fstat(s->fd, &st) != 0) return FAIL("%s: cannot be examined: %s", path, strerror(errno));
    const size_t size = (size_t)st.st_size;
    if (size < 8 || llmc_read_at(s->fd, &header, sizeof header, 0) != 0)
        return FAIL("%s: is shorter than a header: get it again", path);
    if (header > size - 8 || header < 2 || header > MAX_HEADER)
        return FAIL("%s: its header would have %llu bytes: it was truncated, or is not safetensors: get it again", path,
                    (unsigned long long)header);
    char *text = malloc(header);
    const int status = text == NULL || llmc_read_at(s->fd, text, header, 8) != 0
                           ? FAIL("%s: its header cannot be read: %s", path, strerror(errno))
                           : parse(s, text, header, size - 8 - header, err, err_bytes);
    free(text);
    return status;
}

void safetensors_close(SafeTensors *s) {
    if (s->fd != -1) close(s->fd);
    s->fd = -1;
    free(s->tensors);
    cJSON_Delete(s->json);
    s->tensors = NULL;
    s->json = NULL;
}

char *safetensors_header(SafeTensor *tensors, size_t count, size_t *bytes) {
    char *text = NULL;
    uint64_t header = 0;
    size_t begin = 0;
    FILE *f = open_memstream(&text, bytes);
    if (f == NULL) return NULL;
    fwrite(&header, sizeof header, 1, f);
    fputs("{\"__metadata__\":{\"format\":\"pt\"}", f);
    for (size_t i = 0; i < count; i++) {
        SafeTensor *t = &tensors[i];
        t->numel = 1;
        t->element_bytes = bytes_of(t->dtype);
        fprintf(f, ",\"%s\":{\"dtype\":\"%s\",\"shape\":[", t->name, t->dtype);
        for (size_t d = 0; d < t->dims; d++) {
            fprintf(f, "%s%zu", d > 0 ? "," : "", t->shape[d]);
            t->numel *= t->shape[d];
        }
        t->begin = begin;
        begin += t->numel * t->element_bytes;
        fprintf(f, "],\"data_offsets\":[%zu,%zu]}", t->begin, begin);
    }
    fputc('}', f);
    while (ftell(f) % 8 != 0) fputc(' ', f);
    if (fclose(f) != 0) {
        free(text);
        return NULL;
    }
    header = *bytes - 8;
    memcpy(text, &header, sizeof header);
    for (size_t i = 0; i < count; i++) tensors[i].begin += *bytes;
    return text;
}

// ---------------------------------------------------------------------------------------------------------------------
// The data.

static float from_half(uint16_t h) {
    const uint32_t sign = (uint32_t)(h & 0x8000) << 16, exponent = h >> 10 & 31, mantissa = h & 0x3ff;
    const float small = (float)mantissa * 0x1p-24f;  // exponent 0
    uint32_t word;
    float value;
    memcpy(&word, &small, sizeof word);
    if (exponent > 0) word = (exponent == 31 ? 255 : exponent + 112) << 23 | mantissa << 13;
    word |= sign;
    memcpy(&value, &word, sizeof value);
    return value;
}

int safetensors_read(const SafeTensors *s, const SafeTensor *t, size_t begin, size_t count, float *out, char *err,
                     size_t err_bytes) {
    const int half = strcmp(t->dtype, "F16") == 0;
    uint16_t words[PIECE];
    if (!half && strcmp(t->dtype, "F32") != 0 && strcmp(t->dtype, "BF16") != 0)
        return FAIL("%s: tensor %s: has the type %s, which is not read: save it as F32", s->path, t->name, t->dtype);
    if (begin > t->numel || count > t->numel - begin)
        return FAIL("%s: tensor %s: elements [%zu, +%zu) are outside of its %zu: this is a bug", s->path, t->name,
                    begin, count, t->numel);
    for (size_t done = 0; done < count;) {
        const size_t n = count - done < PIECE ? count - done : PIECE;
        void *into = t->element_bytes == 4 ? (void *)(out + done) : (void *)words;
        if (llmc_read_at(s->fd, into, n * t->element_bytes, t->begin + (begin + done) * t->element_bytes) != 0)
            return FAIL("%s: cannot be read: %s: was it changed meanwhile?", s->path, strerror(errno));
        for (size_t i = 0; t->element_bytes == 2 && i < n; i++) {
            const uint32_t word = (uint32_t)words[i] << 16;
            if (half)
                out[done + i] = from_half(words[i]);
            else
                memcpy(out + done + i, &word, sizeof word);
        }
        done += n;
    }
    return 0;
}
