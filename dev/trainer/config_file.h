// A configuration file, JSON or YAML, as a flat list of values. What its keys mean is in config_keys.c.
//
// The value 3 in {"zero_optimization": {"stage": 3}} has the path "zero_optimization.stage", the second of the list
// "betas" has "betas[1]". Objects and lists are in the list too, before what is in them, so that a key that is there
// twice is found. A key that has a dot, a bracket or a quote in it is quoted, and equals no path of a table.
//
// Refused: what the library cannot parse (with its line), binary files, keys that are there twice, numbers that are not
// finite, more than CONFIG_VALUES values or CONFIG_DEPTH levels; of YAML, aliases, tags and a second document.
#ifndef DEV_CONFIG_FILE_H
#define DEV_CONFIG_FILE_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define CONFIG_BYTES  (1 << 20)  // of a file
#define CONFIG_VALUES 1000
#define CONFIG_DEPTH  16

enum config_kind { CONFIG_NULL, CONFIG_BOOL, CONFIG_NUMBER, CONFIG_TEXT, CONFIG_LIST, CONFIG_OBJECT };

typedef struct {
    enum config_kind kind;
    char *path, *text;  // text: "true", "0.001", "cosine"; "" for null, lists and objects. No control characters
    size_t line;        // 0: not known. cJSON does not say it
} ConfigValue;

typedef struct {
    const char *name;
    int yaml;       // 0: JSON
    uint64_t hash;  // of its bytes
    ConfigValue *values;
    size_t n;
} ConfigFile;

// A file whose name ends with .yaml or .yml is YAML, with .json JSON; others are JSON if they begin with {. name is
// kept. Returns 0, or -1 and a message; then, too, config_close has to be called.
int config_open(ConfigFile *c, const char *name, char *err, size_t err_bytes);
void config_close(ConfigFile *c);

// NULL: there is none.
const ConfigValue *config_find(const ConfigFile *c, const char *path);

// Is this value in that list or object, at any depth?
int config_is_inside(const ConfigValue *v, const ConfigValue *container);

// "ds.json: zero_optimization.stage", or with the line: "run.yaml:12: optimizer.zero_stage".
void config_place(const ConfigFile *c, const ConfigValue *v, char *text, size_t bytes);

// The shortest text that is this number.
void config_number_text(double number, char *text, size_t bytes);

#ifdef __cplusplus
}
#endif
#endif
