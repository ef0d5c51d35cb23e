// What the keys of a configuration file mean: DeepSpeed's JSON and nanotron's YAML become settings of flags. There is a
// table for each format in config_keys.c. Pure functions of the file.
#ifndef DEV_CONFIG_KEYS_H
#define DEV_CONFIG_KEYS_H

#include "trainer/config_file.h"

#ifdef __cplusplus
extern "C" {
#endif

#define CONFIG_SETTINGS 64

// A flag and its value, as on the command line.
typedef struct {
    const char *flag;  // its short name
    char value[1024];
    const char *key;    // that says so: a literal
    size_t line;        // 0: not known
    int implied;        // 1: the file does not have the key; this is what it means then
    char refusal[256];  // not "": an error, unless the command line has the flag
} ConfigSetting;

// A size of the batch. value 0: the file does not have it.
typedef struct {
    long long value;
    const char *key;
    size_t line;  // 0: not known
} ConfigSize;

// Sizes that depend on the number of ranks. sequences = micro x accumulation x ranks.
typedef struct {
    ConfigSize sequences;     // of a step, over all ranks
    ConfigSize micro;         // sequences of a micro-batch
    ConfigSize accumulation;  // micro-batches of a rank in a step
    ConfigSize replicas;      // data-parallel ranks
} ConfigBatch;

typedef struct {
    ConfigSetting settings[CONFIG_SETTINGS];
    size_t n;
    ConfigBatch batch;
    char unused[4096];  // keys that are not honoured: "a, b.c"
} ConfigMeaning;

// Returns 0, or -1 and a message.
int config_understand(const ConfigFile *c, ConfigMeaning *m, char *err, size_t err_bytes);

#ifdef __cplusplus
}
#endif
#endif
