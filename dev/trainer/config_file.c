#include "trainer/config_file.h"

#include <cjson/cJSON.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>
#include <yaml.h>

#include "data/llmc_file.h"

#define FAIL(...)  (snprintf(err, err_bytes, __VA_ARGS__), -1)
#define PATH_BYTES 512
#define NO_MEMORY  "the host's memory is exhausted"

// ---------------------------------------------------------------------------------------------------------------------
// The list.

void config_number_text(double number, char *text, size_t bytes) {
    for (int digits = 6; digits <= 17; digits++) {
        snprintf(text, bytes, "%.*g", digits, number);
        if (strtod(text, NULL) == number) break;
    }
}

const ConfigValue *config_find(const ConfigFile *c, const char *path) {
    for (size_t i = 0; i < c->n; i++)
        if (strcmp(c->values[i].path, path) == 0) return &c->values[i];
    return NULL;
}

int config_is_inside(const ConfigValue *v, const ConfigValue *container) {
    const size_t n = strlen(container->path);
    return strncmp(v->path, container->path, n) == 0 && (v->path[n] == '.' || v->path[n] == '[');
}

void config_place(const ConfigFile *c, const ConfigValue *v, char *text, size_t bytes) {
    if (v->line > 0)
        snprintf(text, bytes, "%s:%zu: %s", c->name, v->line, v->path);
    else
        snprintf(text, bytes, "%s: %s", c->name, v->path);
}

// Paths and texts are printed.
static void replace_control_characters(char *text) {
    for (unsigned char *p = (unsigned char *)text; *p != '\0'; p++) {
        if (p[0] == 0xC2 && p[1] >= 0x80 && p[1] < 0xA0) p[1] = '?';  // U+0080 to U+009F
        if (*p < ' ' || *p == 0x7F) *p = '?';
    }
}

// Writes the path of a key; key NULL: of element i of a list. Returns 0, or -1 if it is too long.
static int join(char path[PATH_BYTES], const char *parent, const char *key, size_t i) {
    if (key == NULL) return snprintf(path, PATH_BYTES, "%s[%zu]", parent, i) < PATH_BYTES ? 0 : -1;
    const char *quote = key[0] == '\0' || strpbrk(key, ".[]\"") != NULL ? "\"" : "";
    const int length = snprintf(path, PATH_BYTES, "%s%s%s%s%s", parent, parent[0] != '\0' ? "." : "", quote, key,
                                quote);
    replace_control_characters(path);
    return length < PATH_BYTES ? 0 : -1;
}

// The file itself, with path "", is not in the list.
static int add(ConfigFile *c, const char *path, enum config_kind kind, const char *text, size_t line, char *err,
               size_t err_bytes) {
    ConfigValue v = { kind, strdup(path), strdup(text), line };
    char place[PATH_BYTES + 4096 + 32];
    if (v.path == NULL || v.text == NULL) {
        free(v.path);
        free(v.text);
        return FAIL("%s: " NO_MEMORY, c->name);
    }
    replace_control_characters(v.text);
    config_place(c, &v, place, sizeof place);
    const ConfigValue *first = config_find(c, path);
    int status = 0;
    if (c->n == CONFIG_VALUES)
        status = FAIL("%s: more than %d values: this is no configuration of a training run", c->name, CONFIG_VALUES);
    else if (first != NULL)
        status = FAIL("%s: is there twice: remove one of the two", place);
    if (status != 0) {
        free(v.path);
        free(v.text);
        return -1;
    }
    c->values[c->n++] = v;
    return 0;
}

// Numbers are kept as the shortest text that means the same, so that 1e3 is a whole number.
static int add_number(ConfigFile *c, const char *path, double number, size_t line, char *err, size_t err_bytes) {
    char text[32], place[PATH_BYTES + 4096 + 32];
    const ConfigValue v = { .path = (char *)path, .line = line };
    config_place(c, &v, place, sizeof place);
    if (!isfinite(number)) return FAIL("%s: not a finite number", place);
    if (number == floor(number) && fabs(number) < 1e15)
        snprintf(text, sizeof text, "%.0f", number == 0 ? 0 : number);
    else
        config_number_text(number, text, sizeof text);
    return add(c, path, CONFIG_NUMBER, text, line, err, err_bytes);
}

// ---------------------------------------------------------------------------------------------------------------------
// JSON.

static size_t line_of(const char *text, const char *at) {
    size_t line = 1;
    for (; text < at; text++) line += *text == '\n';
    return line;
}

static int add_json(ConfigFile *c, const cJSON *item, const char *path, int depth, char *err, size_t err_bytes) {
    char inner[PATH_BYTES];
    const int is_object = cJSON_IsObject(item);
    if (depth > CONFIG_DEPTH) return FAIL("%s: %s: more than %d levels", c->name, path, CONFIG_DEPTH);
    if (cJSON_IsNumber(item)) return add_number(c, path, item->valuedouble, 0, err, err_bytes);
    if (cJSON_IsString(item)) return add(c, path, CONFIG_TEXT, item->valuestring, 0, err, err_bytes);
    if (cJSON_IsNull(item)) return add(c, path, CONFIG_NULL, "", 0, err, err_bytes);
    if (cJSON_IsBool(item)) return add(c, path, CONFIG_BOOL, cJSON_IsTrue(item) ? "true" : "false", 0, err, err_bytes);
    if (path[0] != '\0' && add(c, path, is_object ? CONFIG_OBJECT : CONFIG_LIST, "", 0, err, err_bytes) != 0) return -1;
    size_t i = 0;
    for (const cJSON *child = item->child; child != NULL; child = child->next, i++) {
        if (join(inner, path, is_object ? child->string : NULL, i) != 0)
            return FAIL("%s: %.100s...: a key that is too long", c->name, inner);
        if (add_json(c, child, inner, depth + 1, err, err_bytes) != 0) return -1;
    }
    return 0;
}

static int read_json(ConfigFile *c, const char *text, char *err, size_t err_bytes) {
    const char *end = text;
    cJSON *root = cJSON_ParseWithOpts(text, &end, 0);
    if (end == NULL) end = text;
    if (root != NULL) end += strspn(end, " \t\r\n");
    int status;
    if (root == NULL || *end != '\0')
        status = FAIL("%s:%zu: not JSON%s (which has no comments, and no comma after the last value)", c->name,
                      line_of(text, end), *end == '\0' ? ", or its end is missing" : "");
    else if (!cJSON_IsObject(root))
        status = FAIL("%s: not a JSON object: {\"key\": value, ...}", c->name);
    else
        status = add_json(c, root, "", 0, err, err_bytes);
    cJSON_Delete(root);
    return status;
}

// ---------------------------------------------------------------------------------------------------------------------
// YAML.

typedef struct {
    ConfigFile *c;
    yaml_parser_t parser;
    yaml_event_t event;  // the last one
    char *err;
    size_t err_bytes;
} Yaml;

#define FAIL_HERE(y, ...) (fail_here(y, __VA_ARGS__), -1)
static void fail_here(Yaml *y, const char *what) {
    snprintf(y->err, y->err_bytes, "%s:%zu: %s", y->c->name, y->event.start_mark.line + 1, what);
}

static int next_event(Yaml *y) {
    yaml_event_delete(&y->event);
    if (yaml_parser_parse(&y->parser, &y->event)) return 0;
    const char *problem = y->parser.problem != NULL ? y->parser.problem : NO_MEMORY;
    snprintf(y->err, y->err_bytes, "%s:%zu: not YAML: %s", y->c->name, y->parser.problem_mark.line + 1, problem);
    return -1;
}

// Digits with an optional sign, fraction and exponent. Not 010, which is 8 in YAML 1.1 and 10 in 1.2.
static int is_number(const char *s) {
    s += *s == '-' || *s == '+';
    const size_t whole = strspn(s, "0123456789");
    if (whole > 1 && s[0] == '0') return 0;
    s += whole;
    const size_t fraction = *s == '.' ? strspn(s + 1, "0123456789") : 0;
    s += *s == '.' ? 1 + fraction : 0;
    if (whole + fraction == 0) return 0;
    if (*s == 'e' || *s == 'E') {
        s += 1 + (s[1] == '-' || s[1] == '+');
        if (strspn(s, "0123456789") == 0) return 0;
        s += strspn(s, "0123456789");
    }
    return *s == '\0';
}

static int is_one_of(const char *text, const char *words) {  // " a b c "
    char word[64];
    return snprintf(word, sizeof word, " %s ", text) < (int)sizeof word && strstr(words, word) != NULL;
}

// A plain scalar is what YAML 1.1 takes it for.
static int add_scalar(Yaml *y, const char *path) {
    const yaml_event_t *e = &y->event;
    const char *text = (const char *)e->data.scalar.value;
    const size_t line = e->start_mark.line + 1;
    if (e->data.scalar.tag != NULL) return FAIL_HERE(y, "a tag (!): leave it out");
    if (e->data.scalar.style == YAML_PLAIN_SCALAR_STYLE) {
        const char *sign = text + (*text == '-' || *text == '+');
        if (*text == '\0' || is_one_of(text, " ~ null Null NULL "))
            return add(y->c, path, CONFIG_NULL, "", line, y->err, y->err_bytes);
        if (is_one_of(text, " true True TRUE yes Yes YES on On ON "))
            return add(y->c, path, CONFIG_BOOL, "true", line, y->err, y->err_bytes);
        if (is_one_of(text, " false False FALSE no No NO off Off OFF "))
            return add(y->c, path, CONFIG_BOOL, "false", line, y->err, y->err_bytes);
        if (is_one_of(sign, " .inf .Inf .INF .nan .NaN .NAN "))
            return add_number(y->c, path, NAN, line, y->err, y->err_bytes);
        if (is_number(text)) return add_number(y->c, path, strtod(text, NULL), line, y->err, y->err_bytes);
    }
    return add(y->c, path, CONFIG_TEXT, text, line, y->err, y->err_bytes);
}

static int add_node(Yaml *y, const char *path, int depth) {
    char inner[PATH_BYTES];
    const int is_map = y->event.type == YAML_MAPPING_START_EVENT;
    const size_t line = y->event.start_mark.line + 1;
    if (depth > CONFIG_DEPTH) return FAIL_HERE(y, "too many levels");
    if (y->event.type == YAML_SCALAR_EVENT) return add_scalar(y, path);
    if (!is_map && y->event.type != YAML_SEQUENCE_START_EVENT)
        return FAIL_HERE(y, "an alias (*): write the value instead");
    if (path[0] != '\0' && add(y->c, path, is_map ? CONFIG_OBJECT : CONFIG_LIST, "", line, y->err, y->err_bytes) != 0)
        return -1;
    for (size_t i = 0;; i++) {
        if (next_event(y) != 0) return -1;
        if (y->event.type == YAML_MAPPING_END_EVENT || y->event.type == YAML_SEQUENCE_END_EVENT) return 0;
        if (is_map && y->event.type != YAML_SCALAR_EVENT) return FAIL_HERE(y, "a key that is not a word");
        if (join(inner, path, is_map ? (const char *)y->event.data.scalar.value : NULL, i) != 0)
            return FAIL_HERE(y, "a key that is too long");
        if (is_map && next_event(y) != 0) return -1;
        if (add_node(y, inner, depth + 1) != 0) return -1;
    }
}

static int read_document(Yaml *y) {
    do {
        if (next_event(y) != 0) return -1;
    } while (y->event.type == YAML_STREAM_START_EVENT || y->event.type == YAML_DOCUMENT_START_EVENT);
    if (y->event.type != YAML_MAPPING_START_EVENT) return FAIL_HERE(y, "not a list of keys and values: key: value");
    if (add_node(y, "", 0) != 0) return -1;
    do {
        if (next_event(y) != 0) return -1;
    } while (y->event.type == YAML_DOCUMENT_END_EVENT);
    return y->event.type == YAML_STREAM_END_EVENT ? 0 : FAIL_HERE(y, "a second document: leave it out");
}

static int read_yaml(ConfigFile *c, const char *text, char *err, size_t err_bytes) {
    Yaml y = { .c = c, .err = err, .err_bytes = err_bytes };
    if (!yaml_parser_initialize(&y.parser)) return FAIL("%s: " NO_MEMORY, c->name);
    yaml_parser_set_input_string(&y.parser, (const unsigned char *)text, strlen(text));
    const int status = read_document(&y);
    yaml_event_delete(&y.event);
    yaml_parser_delete(&y.parser);
    return status;
}

// ---------------------------------------------------------------------------------------------------------------------
// Files.

static int ends_with(const char *name, const char *end) {
    const size_t n = strlen(name), m = strlen(end);
    return n >= m && strcmp(name + n - m, end) == 0;
}

// Reads a file into text[CONFIG_BYTES + 1].
static int read_text(ConfigFile *c, char *text, char *err, size_t err_bytes) {
    const int fd = llmc_open(c->name, err, err_bytes);
    FILE *f = fd != -1 ? fdopen(fd, "rb") : NULL;
    if (fd == -1) return -1;
    if (f == NULL) {
        close(fd);
        return FAIL("%s: " NO_MEMORY, c->name);
    }
    const size_t n = fread(text, 1, CONFIG_BYTES + 1, f);
    const int failed = ferror(f), why = errno;
    fclose(f);
    if (failed) return FAIL("%s: cannot be read: %s", c->name, strerror(why));
    if (n > CONFIG_BYTES) return FAIL("%s: more than %d bytes: this is no configuration", c->name, CONFIG_BYTES);
    if (n == 0) return FAIL("%s: is empty", c->name);
    if (memchr(text, '\0', n) != NULL) return FAIL("%s: is a binary file, not JSON or YAML", c->name);
    text[n] = '\0';
    c->hash = XXH3_64bits(text, n);
    c->yaml = ends_with(c->name, ".yaml") || ends_with(c->name, ".yml") ||
              (!ends_with(c->name, ".json") && text[strspn(text, " \t\r\n")] != '{');
    return 0;
}

int config_open(ConfigFile *c, const char *name, char *err, size_t err_bytes) {
    *c = (ConfigFile){ .name = name, .values = calloc(CONFIG_VALUES, sizeof *c->values) };
    char *text = malloc(CONFIG_BYTES + 1);
    int status = text != NULL && c->values != NULL ? 0 : FAIL("%s: " NO_MEMORY, name);
    if (status == 0) status = read_text(c, text, err, err_bytes);
    if (status == 0) status = (c->yaml ? read_yaml : read_json)(c, text, err, err_bytes);
    free(text);
    return status;
}

void config_close(ConfigFile *c) {
    for (size_t i = 0; i < c->n; i++) {
        free(c->values[i].path);
        free(c->values[i].text);
    }
    free(c->values);
    *c = (ConfigFile){ 0 };
}
