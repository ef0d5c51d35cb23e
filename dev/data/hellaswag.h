// HellaSwag: examples of a context and four completions, one of which is right. A model is right if it gives that one
// the lowest mean loss. Reads llm.c's file; see hellaswag.c.
//
// Nothing is printed. Errors are messages in err that name the file and the remedy.
#ifndef DEV_DATA_HELLASWAG_H
#define DEV_DATA_HELLASWAG_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct HellaSwag HellaSwag;

// Reads and checks the whole file. vocab: a token id of vocab or more is an error. Returns 0, or -1 and a message.
int hellaswag_open(HellaSwag **h, const char *path, size_t vocab, char err[512]);

size_t hellaswag_examples(const HellaSwag *h);

// Rows for the model: four of each example, its completions. Row 4 e + c is completion c of example e.
size_t hellaswag_rows(const HellaSwag *h);

// Tokens of the longest row.
size_t hellaswag_longest(const HellaSwag *h);

// Writes the T >= hellaswag_longest inputs and targets of a row, unless they are NULL: the context, the completion,
// then zeros. The losses at positions *begin to *end - 1 are those of the completion's tokens.
void hellaswag_row(const HellaSwag *h, size_t row, size_t T, int *inputs, int *targets, size_t *begin, size_t *end);

// Given the mean loss of each row, returns how many examples are answered right.
size_t hellaswag_correct(const HellaSwag *h, const double *losses);

// Frees; NULL is fine.
void hellaswag_close(HellaSwag *h);

#ifdef __cplusplus
}
#endif
#endif
