#include "trainer/json.h"

#include <math.h>

void json_string(FILE *out, const char *s) {
    fputc('"', out);
    for (; *s != '\0'; s++) {
        if ((unsigned char)*s < ' ') {
            fprintf(out, "\\u%04x", (unsigned)(unsigned char)*s);
        } else {
            fprintf(out, *s == '"' || *s == '\\' ? "\\%c" : "%c", *s);
        }
    }
    fputc('"', out);
}

void json_number(FILE *out, double x) {
    if (isfinite(x))
        fprintf(out, "%.10g", x);
    else
        fprintf(out, "null");
}
