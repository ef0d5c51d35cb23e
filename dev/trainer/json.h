// Values as JSON, for --plan json and metrics.jsonl.
#ifndef TRAINER_JSON_H
#define TRAINER_JSON_H

#include <stdio.h>

#ifdef __cplusplus
extern "C" {
#endif

void json_string(FILE *out, const char *s);
void json_number(FILE *out, double x);  // 10 digits; null if it is not finite

#ifdef __cplusplus
}
#endif
#endif
